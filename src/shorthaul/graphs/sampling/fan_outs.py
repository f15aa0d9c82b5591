"""How many neighbors each hop takes, as users write it and as the sampler reads it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from shorthaul.errors import SamplingError
from shorthaul.graphs.graph import RelationalGraph

FanOut = int | Mapping[Any, int]
ALL = -1
DEFAULT = (15, 10, 5)


def read_fan_outs(graph: RelationalGraph, fan_outs: Sequence[FanOut]) -> list[list[int]]:
    """One row for each hop, of one number for all relations together or of one for each.

    >>> graph = RelationalGraph.from_edges([0, 1], [1, 0], [0, 1], relations=["cites", "writes"])
    >>> read_fan_outs(graph, [15, {"cites": 10, "writes": -1}])
    [[15], [10, -1]]
    """
    if isinstance(fan_outs, str | Mapping) or not isinstance(fan_outs, Sequence):
        raise SamplingError(
            f"fan_outs must be a sequence with one entry for each hop, such as [15, 10], got "
            f"{fan_outs!r}."
        )
    return [_read_hop(graph, number, fan_out) for number, fan_out in enumerate(fan_outs)]


def choose_fan_outs(
    graph: RelationalGraph, fan_outs: Sequence[FanOut] | None, num_neighbors: Any
) -> Sequence[FanOut]:
    """The fan-outs that were asked for, in our words or in PyG's.

    PyG's numbers are those of each relation, and a mapping has the numbers of all hops:

    >>> graph = RelationalGraph.from_edges([0, 1], [1, 0], [0, 1], relations=["cites", "writes"])
    >>> choose_fan_outs(graph, None, [15, 10])
    [{0: 15, 1: 15}, {0: 10, 1: 10}]
    >>> choose_fan_outs(graph, None, {"cites": [15, 10], "writes": [5, 0]})
    [{'cites': 15, 'writes': 5}, {'cites': 10, 'writes': 0}]
    """
    if num_neighbors is None:
        return DEFAULT if fan_outs is None else fan_outs
    if fan_outs is not None:
        raise SamplingError(
            "`fan_outs` and `num_neighbors`, PyG's word, both say how many neighbors each hop takes: "
            "pass one of them."
        )
    if isinstance(num_neighbors, Mapping):
        hops = {
            len(each) if isinstance(each, list | tuple) else -1 for each in num_neighbors.values()
        }
        if len(hops) != 1 or -1 in hops:
            raise SamplingError(
                "num_neighbors must have as many numbers for each relation as there are hops, got "
                f"{dict(num_neighbors)!r}."
            )
        return [
            {key: each[hop] for key, each in num_neighbors.items()} for hop in range(hops.pop())
        ]
    if not isinstance(num_neighbors, list | tuple):
        raise SamplingError(
            "num_neighbors must be a list with one number for each hop, or a mapping of relations to "
            f"such lists, got {num_neighbors!r}."
        )
    if graph.num_relations <= 1:
        return list(num_neighbors)
    of_all: Sequence[int] = num_neighbors
    return [dict.fromkeys(range(graph.num_relations), each) for each in of_all]


def require_one_kind(graph: RelationalGraph, fan_outs: list[list[int]]) -> list[list[int]]:
    """The same fan-outs, all of them for each relation or none: rows lie by time in one way only."""
    if len({len(each) for each in fan_outs}) <= 1:
        return fan_outs
    alike = []
    for number, fan in enumerate(fan_outs):
        if len(fan) == 1 and fan[0] > 0 and graph.num_relations > 1:
            raise SamplingError(
                f"fan_outs[{number}] is {fan[0]} for all relations together, but other hops give each "
                "relation its own; with times all hops must be of one kind.\n"
                f"  `dict.fromkeys(graph.relations, {fan[0]})` gives {fan[0]} to each."
            )
        alike.append(fan * graph.num_relations if len(fan) == 1 else fan)
    return alike


def _read_hop(graph: RelationalGraph, number: int, fan_out: Any) -> list[int]:
    if not isinstance(fan_out, Mapping):
        return [_read_number(f"fan_outs[{number}]", fan_out)]
    of_relation: dict[int, int] = {}
    for key, value in fan_out.items():
        where = f"fan_outs[{number}][{key!r}]"
        relation = _read_relation(graph, where, key)
        if relation in of_relation:
            raise SamplingError(f"{where}: `{graph.relations[relation]}` is named twice.")
        of_relation[relation] = _read_number(where, value)
    missing = [str(each) for at, each in enumerate(graph.relations) if at not in of_relation]
    if missing:
        told = ", ".join(missing[:5]) + (", .." if len(missing) > 5 else "")
        raise SamplingError(
            f"fan_outs[{number}] names {len(of_relation):,} of {graph.num_relations:,} relations; "
            f"it lacks {told}.\n  Give 0 to leave a relation out; `dict.fromkeys(graph.relations, 5)` "
            "gives 5 to each."
        )
    return [of_relation[relation] for relation in range(graph.num_relations)]


def _read_relation(graph: RelationalGraph, where: str, key: Any) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < graph.num_relations:
        return key
    if isinstance(key, str | tuple):
        return graph.relation_number(key)
    raise SamplingError(
        f"{where}: expected a relation's name, its three words or its number below "
        f"{graph.num_relations:,}."
    )


def _read_number(where: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = ALL - 1
    if isinstance(value, bool) or number < ALL:
        raise SamplingError(
            f"{where} must be a whole number of neighbors, or -1 for all of them, got {value!r}."
        )
    return number
