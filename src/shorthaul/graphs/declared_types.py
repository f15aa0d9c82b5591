"""Node types and relations as a user names them -> counts and names that fit the edges, or an error."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from shorthaul.errors import GraphError
from shorthaul.graphs.edge_tensors import read_numbers, require_count
from shorthaul.graphs.relation import EDGE, NODE, Relation


def read_relation_numbers(relation: Any, like: torch.Tensor) -> torch.Tensor:
    """The relation of each edge; without any, all edges have the first."""
    if relation is None:
        return torch.zeros(like.numel(), dtype=torch.int32, device="cpu")
    return read_numbers(relation, "relation")


def choose_types(
    nodes_per_type: Mapping[str, int] | None,
    num_nodes: int | None,
    ends: tuple[torch.Tensor, torch.Tensor],
    node_names: Sequence[str] | None,
) -> dict[str, int]:
    """Node types with their counts: as given, else one type that holds all ids."""
    if nodes_per_type is not None:
        types = read_types(nodes_per_type)
        if not types:
            raise GraphError("`nodes_per_type` names no node type; leave it out, or name one.")
        if num_nodes is not None and num_nodes != sum(types.values()):
            raise GraphError(
                f"num_nodes is {num_nodes:,}, but nodes_per_type adds up to {sum(types.values()):,}."
            )
    elif num_nodes is not None:
        types = {NODE: require_count("num_nodes", num_nodes)}
    elif node_names is not None:
        types = {NODE: len(node_names)}
    else:
        types = {NODE: max(map(_count, ends))}
    require_names(node_names, sum(types.values()))
    return types


def choose_relations(
    relations: Sequence[str | tuple[str, str, str]] | None,
    num_relations: int | None,
    given: Any,
    relation: torch.Tensor,
    types: tuple[str, ...],
) -> tuple[Relation, ...]:
    """The relations: as named, else numbered; each joins types that there are."""
    if relations is None:
        if len(types) > 1:
            raise GraphError(
                f"the nodes have {len(types)} types, so `relations` must name the types that each "
                "relation joins: (source type, name, target type)."
            )
        if num_relations is not None:
            count = require_count("num_relations", num_relations)
        else:
            count = 1 if given is None else _count(relation)
        names = (EDGE,) if given is None and count == 1 else tuple(map(str, range(count)))
        return tuple(Relation(types[0], each, types[0]) for each in names)
    if num_relations is not None and num_relations != len(relations):
        raise GraphError(
            f"num_relations is {num_relations:,}, but `relations` names {len(relations):,}."
        )
    named = tuple(
        Relation(types[0], each, types[0])
        if isinstance(each, str) and len(types) == 1
        else read_relation_name(each)
        for each in relations
    )
    _require_distinct(named)
    for each in named:
        for kind in (each.source_type, each.target_type):
            if kind not in types:
                raise GraphError(
                    f"relation `{each}` joins nodes of type `{kind}`, but there are {listed(types)}."
                )
    return named


def read_relation_name(words: Any) -> Relation:
    """A relation from its three words."""
    is_name = isinstance(words, tuple) and len(words) == 3
    if not is_name or not all(isinstance(each, str) for each in words):
        raise GraphError(
            f"a relation is named by three words, (source type, name, target type); got {words!r}."
        )
    return Relation(*words)


def read_types(nodes_per_type: Mapping[str, int]) -> dict[str, int]:
    """Counts of node types that can be used."""
    return {
        name: require_count(f"nodes_per_type[{name!r}]", count)
        for name, count in nodes_per_type.items()
    }


def count_types(
    ends: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, int]:
    """One more than the largest id that each type is seen with; types in order of appearance."""
    types: dict[str, int] = {}
    for each, (one, other) in ends.items():
        for kind, values in ((each.source_type, one), (each.target_type, other)):
            types[kind] = max(types.get(kind, 0), _count(values))
    return types


def _count(values: torch.Tensor) -> int:
    return max(0, int(values.max()) + 1) if values.numel() else 0


def require_names(node_names: Sequence[str] | None, nodes: int) -> None:
    """Raise unless there are no names, or one for each node."""
    if node_names is not None and len(node_names) != nodes:
        raise GraphError(f"there are {nodes:,} nodes, but {len(node_names):,} node names.")


def require_joined_types(
    types: Mapping[str, int],
    relations: Sequence[Relation],
    source: torch.Tensor,
    target: torch.Tensor,
    relation: torch.Tensor,
    *,
    first_edge: int = 0,
) -> None:
    """Raise unless every edge joins nodes of the types that its relation names.

    `first_edge` is the number of the first of them.
    """
    starts = dict(zip(types, itertools.accumulate(types.values(), initial=0), strict=False))
    for end, nodes in (("source", source), ("target", target)):
        kinds = [getattr(each, f"{end}_type") for each in relations]
        first = torch.tensor([starts[each] for each in kinds], dtype=torch.int64, device="cpu")
        count = torch.tensor([types[each] for each in kinds], dtype=torch.int64, device="cpu")
        start, stop = first[relation], (first + count)[relation]
        wrong = torch.nonzero((nodes < start) | (nodes >= stop))
        if wrong.numel():
            edge = int(wrong[0])
            raise GraphError(
                f"edge {first_edge + edge:,} is a `{relations[int(relation[edge])]}`, but its {end} is node "
                f"{int(nodes[edge]):,}, and nodes of that type are {int(start[edge]):,} to "
                f"{int(stop[edge]) - 1:,}."
            )


def _require_distinct(relations: Sequence[Relation]) -> None:
    seen: set[Relation] = set()
    for each in relations:
        if each in seen:
            raise GraphError(f"two relations are called `{each}`.")
        seen.add(each)


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for an error: the first of them, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(f"`{each}`" for each in listed[:most]) + more if listed else "none"
