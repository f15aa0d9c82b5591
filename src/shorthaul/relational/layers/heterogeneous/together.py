"""Relations whose layers are computed together: one graph of all, one program, and weights per relation.

Whatever has a layer per relation makes a `Call` of each and asks `run_relations` for the results. Layers
that are alike have the same program of what targets hear, which `repeat_over_relations` makes a program
of many relations; what they do to the target itself is a product apart. A relation whose layer cannot be
told so is called by itself, and `Programs.alone` says why.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.compiled_layer import CompiledFunction
from shorthaul.relational.frontend.declarations import Weight
from shorthaul.relational.inputs.parts import Loops, Part, Types, find_part_graph
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.layers.called import has_hooks, is_called_as_ours
from shorthaul.relational.layers.homogeneous.base import HomogeneousConv
from shorthaul.relational.passes.over_relations import SHARE, repeat_over_relations
from shorthaul.relational.runtime.arguments import cast_as_autocast

AGGREGATIONS = ("sum", "mean", "min", "max", "cat", None)
_EDGE_ARGUMENTS = {"edge_attr": "edge_attr", "weight": "edge_weight"}  # by the program's names


class Call(NamedTuple):
    """One relation's layer, and what it is called with."""

    types: Types
    conv: Any
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    place: Hashable = None  # results with the same place are added up

    def run(self) -> Any:
        """The layer's own result."""
        return self.conv(*self.arguments, **self.named)

    @property
    def ends(self) -> tuple[Any, Any]:
        """Features of sources and of targets."""
        x = self.arguments[0]
        return (x[0], x[1]) if isinstance(x, tuple | list) else (x, x)

    @property
    def given(self) -> dict[str | int, Any]:
        """What else than features and edges is there, by place or name."""
        more: list[tuple[str | int, Any]] = [*enumerate(self.arguments[2:]), *self.named.items()]
        return {name: value for name, value in more if value is not None}

    @property
    def edge_values(self) -> torch.Tensor | None:
        """Attributes or weights of the edges."""
        return next(iter(self.given.values()), None)

    def find_function(self) -> CompiledFunction | str:
        """What targets hear, as a program; or why the layer must be called itself."""
        made: CompiledFunction | str = self.conv.message_function(
            is_weighted=self.edge_values is not None
        )
        return made


@dataclass
class Programs:
    """The programs of a layer: equal ones are one, and are repeated over the relations that have it."""

    first: dict[Any, CompiledFunction] = field(default_factory=dict)  # by their texts
    known: dict[int, tuple[Any, CompiledFunction]] = field(default_factory=dict)
    repeated: dict[tuple[int, bool], CompiledFunction] = field(default_factory=dict)
    last: dict[tuple[Types, ...], CompiledFunction] = field(default_factory=dict)
    alone: dict[Types, str] = field(default_factory=dict)  # of the last call, too

    def find(self, function: CompiledFunction) -> CompiledFunction:
        """The first function with the program of `function`."""
        found = self.known.get(id(function))
        if found is None or found[0] is not function:
            first = self.first.setdefault(function.program, function)
            found = self.known[id(function)] = (function, first)
        return found[1]

    def repeat(self, function: CompiledFunction, *, is_shared: bool) -> CompiledFunction:
        """The program of `function` for many relations."""
        key = id(function), is_shared
        if key not in self.repeated:
            declared = {
                name: replace(each, space=Space.RELATION) if each.kind == "weight" else each
                for name, each in function.declarations.items()
            }
            if is_shared:
                declared[SHARE] = Weight("relation")
            program = repeat_over_relations(function.program, is_shared=is_shared)
            made = CompiledFunction(program, declared, function.without, function.source)
            made.backend, made.memory_budget = function.backend, function.memory_budget
            self.repeated[key] = made
        return self.repeated[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        return Programs()  # they are of the layers that they were asked of

    def __reduce__(self) -> Any:
        return Programs, ()


def run_relations(calls: Sequence[Call], aggr: str | None, programs: Programs) -> dict[str, Any]:
    """Results per type of targets: of its relations, added up or as `aggr` says."""
    is_sum = aggr in ("sum", "mean") and not torch.compiler.is_compiling()
    if is_sum:
        reached = list(dict.fromkeys(each.types[2] for each in calls))
        counts = {name: sum(each.types[2] == name for each in calls) for name in reached}
        shares: dict[Hashable, float] = {
            name: 1.0 / count if aggr == "mean" else 1.0 for name, count in counts.items()
        }
        placed = [each._replace(place=each.types[2]) for each in calls]
        made = _compute(placed, shares, programs)
        return {name: made[name] for name in reached}
    results: dict[str, list[Any]] = {}
    for each, result in zip(calls, run_apart(calls, programs), strict=True):
        results.setdefault(each.types[2], []).append(result)
    return {name: _aggregate(those, aggr, name) for name, those in results.items()}


def run_apart(calls: Sequence[Call], programs: Programs) -> list[Any]:
    """The result of each relation, not added up."""
    if torch.compiler.is_compiling():
        return [each.run() for each in calls]
    placed = [each._replace(place=number) for number, each in enumerate(calls)]
    shares: dict[Hashable, float] = {each.place: 1.0 for each in placed}
    made = _compute(placed, shares, programs)
    return [made[number] for number in range(len(calls))]


def explain_programs(programs: Programs, options: Mapping[str, Any]) -> str:
    """Every stage of each program of the last call, and which relations were called by themselves."""
    if not programs.last and not programs.alone:
        return "not called yet: which relations are alike is seen at a call"
    parts = []
    for relations, function in programs.last.items():
        named = ", ".join(map("__".join, relations))
        parts.append(f"== one program for {named} ==\n\n{function.explain(**options)}")
    if programs.alone:
        lines = [f"{'__'.join(types)}: {why}" for types, why in programs.alone.items()]
        parts.append("\n".join(["== called by themselves ==\n", *lines]))
    return "\n\n".join(parts)


def _compute(
    calls: Sequence[Call], shares: Mapping[Hashable, float], programs: Programs
) -> dict[Hashable, Any]:
    """The sum of what is made for each place, times the place's share."""
    programs.last, programs.alone = {}, {}
    made: dict[Hashable, list[Any]] = {each.place: [] for each in calls}
    together: dict[Any, list[Call]] = {}
    for each in calls:
        function = _find_function(each)
        if isinstance(function, str):
            programs.alone[each.types] = function
            result, share = each.run(), shares[each.place]
            made[each.place].append(result if share == 1 else result * share)
        else:
            key = id(programs.find(function)), each.conv.training
            together.setdefault(key, []).append(each)
    for group in together.values():
        for place, heard in _run(group, shares, programs):
            made[place].append(heard)
    owned = [each for group in together.values() for each in group]
    for place, results in made.items():
        if len(results) > 1:
            _require_alike(results, calls, place)
    return {
        place: _add_own(sum(results[1:], results[0]), place, owned, shares[place])
        for place, results in made.items()
    }


def _find_function(call: Call) -> CompiledFunction | str:
    """The program of a relation's messages; or why its layer must be called itself."""
    conv = call.conv
    if not isinstance(conv, HomogeneousConv):
        return f"its layer is a {type(conv).__name__}, which has no program of its messages"
    if has_hooks(conv):
        return "its layer has hooks"
    if not is_called_as_ours(conv):
        return "its layer has a forward of its own"
    if len(call.arguments) < 2 or len(call.given) > 1:
        return "its layer is called with other things than features, edges and their values"
    if isinstance(call.arguments[0], tuple | list) and not conv.takes_pairs:
        return f"{type(conv).__name__} takes one set of nodes"
    source, target = call.ends
    if not all(_is_plain(each) for each in (source, target, call.arguments[1])):
        return "its features or edges are no plain tensors"
    if not all(_is_plain(each) for each in call.given.values()):
        return "its layer is asked for more than results"
    function = call.find_function()
    if isinstance(function, str):
        return function
    if source.dim() != 2 or (source.shape[-1], target.shape[-1]) != conv.widths:
        return "its features have other widths than its layer"
    taken = [_EDGE_ARGUMENTS.get(name) for name in function.feature_names]
    if any(isinstance(name, str) and name not in taken for name in call.given):
        return "its layer takes no values of edges by that name"
    return function


def _run(
    calls: list[Call], shares: Mapping[Hashable, float], programs: Programs
) -> list[tuple[Hashable, torch.Tensor]]:
    """What the targets of these relations hear, with the place of each set of them."""
    found = calls[0].find_function()
    assert not isinstance(found, str)
    function = programs.find(found)
    part, sources, targets = _number_nodes(calls)
    graph = find_part_graph(part, [each.arguments[1] for each in calls])
    tensors = _stack([each.conv.weights() for each in calls])
    is_shared = any(shares[each.place] != 1 for each in calls)
    if len(calls) > 1:
        function = programs.repeat(function, is_shared=is_shared)
        if is_shared:
            like = sources.sets[0][1]
            each_share = [shares[each.place] for each in calls]
            tensors[SHARE] = torch.tensor(each_share, dtype=like.dtype, device=like.device)
    else:
        tensors = {name: value[0] for name, value in tensors.items()}
    tensors["x"] = _join(sources.sets, max(part.num_sources, part.num_targets))
    if "other" in function.feature_names:
        tensors["other"] = _join(targets.sets, part.num_targets)
    for name, argument in _EDGE_ARGUMENTS.items():
        if name in function.feature_names:
            values = [_read_edge_values(each, argument) for each in calls]
            tensors[name] = values[0] if len(values) == 1 else torch.cat(values)
    programs.last[part.relations] = function
    heard = function(
        graph,
        {name: tensors[name] for name in function.input_names},
        training=calls[0].conv.training,
        num_targets=part.num_targets,
    )
    if is_shared and len(calls) == 1:
        heard = heard * shares[calls[0].place]
    pieces = torch.split(heard, list(part.targets))
    return [(place, each) for (place, _), each in zip(targets.sets, pieces, strict=True)]


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided


class _Sets(NamedTuple):
    """Features with whose they are; those of one type may differ by relation: then it is there again."""

    sets: list[tuple[Hashable, torch.Tensor]]
    places: list[int]  # of each end that was given: its set


def _collect_sets(ends: Sequence[tuple[Hashable, torch.Tensor]]) -> _Sets:
    sets: dict[Hashable, tuple[Hashable, torch.Tensor]] = {}
    for name, rows in ends:
        sets.setdefault((name, id(rows)), (name, rows))
    order = {key: place for place, key in enumerate(sets)}
    return _Sets(list(sets.values()), [order[name, id(rows)] for name, rows in ends])


def _number_nodes(calls: Sequence[Call]) -> tuple[Part, _Sets, _Sets]:
    """Sources and targets of all relations, each numbered apart."""
    kinds = [each.conv.message_loops() for each in calls]
    ends = [(each.types[0], each.ends[0]) for each in calls]
    own = [each for each, kind in zip(calls, kinds, strict=True) if kind == "added"]
    sources = _collect_sets([*ends, *((each.types[2], each.ends[1]) for each in own)])
    targets = _collect_sets([(each.place, each.ends[1]) for each in calls])
    heard, rest = sources.places[: len(calls)], iter(sources.places[len(calls) :])
    loops = [
        None if kind is None else Loops(next(rest) if kind == "added" else one, kind)
        for kind, one in zip(kinds, heard, strict=True)
    ]
    part = Part(
        tuple(each.types for each in calls),
        tuple(len(rows) for _, rows in sources.sets),
        tuple(len(rows) for _, rows in targets.sets),
        tuple(zip(heard, targets.places, strict=True)),
        tuple(loops),
    )
    return part, sources, targets


def _stack(weights: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([each[name] for each in weights]) for name in weights[0]}


def _join(sets: Sequence[tuple[Hashable, torch.Tensor]], rows: int) -> torch.Tensor:
    """All sets' rows, one set after the other, and zeros up to `rows`."""
    joined = [each for _, each in sets]
    whole = joined[0] if len(joined) == 1 else torch.cat(joined)
    missing = rows - whole.shape[0]
    return functional.pad(whole, (0, 0, 0, missing)) if missing else whole


def _read_edge_values(call: Call, argument: str) -> torch.Tensor:
    """What the program reads of a relation's edges and loops."""
    values, edges = call.edge_values, call.arguments[1]
    if values is not None and len(values) != edges.shape[1]:
        raise LayerArgumentError(
            f"{argument} of {call.types} has {len(values):,} rows, but there are "
            f"{edges.shape[1]:,} edges",
            "give one row per edge",
        )
    made: torch.Tensor = call.conv.message_values(edges, values, call.ends)
    return made


def _require_alike(results: Sequence[Any], calls: Sequence[Call], place: Hashable) -> None:
    """Raise where results cannot be added up: PyTorch would spread one over the rows of another."""
    kinds = dict.fromkeys(
        str(tuple(each.shape)) if isinstance(each, torch.Tensor) else type(each).__name__
        for each in results
    )
    if len(kinds) > 1 or not isinstance(results[0], torch.Tensor):
        named = ", ".join("__".join(each.types) for each in calls if each.place == place)
        raise LayerArgumentError(
            f"results of {named} are added up, but they are {' and '.join(kinds)}",
            "let the layers of all relations return one tensor of the same shape",
        )


def _add_own(heard: Any, place: Hashable, calls: Sequence[Call], share: float) -> Any:
    """What targets are given besides what they hear: one product for all relations that have the same
    features of them.
    """
    matrices: dict[int, list[torch.Tensor]] = {}
    rows: dict[int, torch.Tensor] = {}
    biases = []
    for each in calls:
        if each.place != place:
            continue
        matrix, bias = each.conv.own_terms()
        if matrix is not None:
            matrices.setdefault(id(each.ends[1]), []).append(matrix)
            rows[id(each.ends[1])] = each.ends[1]
        if bias is not None:
            biases.append(bias)
    for key, found in matrices.items():
        heard = torch.addmm(heard, rows[key], sum(found[1:], found[0]).t(), alpha=share)
    if biases:
        bias = cast_as_autocast({"bias": sum(biases[1:], biases[0])})["bias"]
        heard = heard + (bias if share == 1 else bias * share)
    return heard


def _aggregate(results: list[Any], aggr: str | None, name: str) -> Any:
    """PyG's: one result as it is, unless they are stacked."""
    if aggr is None:
        return torch.stack(results, dim=1)
    if aggr not in AGGREGATIONS:
        raise LayerArgumentError(
            f"results of {name} are joined by aggr={aggr!r}",
            f"it is one of {', '.join(map(repr, AGGREGATIONS))}",
        )
    if len(results) == 1:
        return results[0]
    if aggr == "cat":
        return torch.cat(results, dim=-1)
    stacked = torch.stack(results, dim=0)
    if aggr == "sum":
        return stacked.sum(0)
    if aggr == "mean":
        return stacked.mean(0)
    # Not amax: the gradient goes to one of equal results, as in PyG.
    return stacked.max(0).values if aggr == "max" else stacked.min(0).values
