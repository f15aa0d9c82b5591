"""A layer for each relation of a heterogeneous graph, computed together: PyG's `HeteroConv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from shorthaul.errors import LayerArgumentError
from shorthaul.jit.runtime import stay_alone_after_fork
from shorthaul.relational.compiled_layer import CompiledFunction
from shorthaul.relational.frontend.declarations import Weight
from shorthaul.relational.inputs.parts import Part, Types, find_part_graph
from shorthaul.relational.inputs.self_loops import replace_loop_features
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.layers.homogeneous.base import HomogeneousConv
from shorthaul.relational.passes.over_relations import SHARE, repeat_over_relations
from shorthaul.relational.runtime.arguments import cast_as_autocast

AGGREGATIONS = ("sum", "mean", "min", "max", "cat", None)
PACKAGE = __name__.partition(".")[0]
_CALLS = {"forward", "read", "__call__", "_call_impl"}  # what runs in a call of a layer
_EDGE_ARGUMENTS = {"edge_attr": "edge_attr", "weight": "edge_weight"}  # by the program's names


class Call(NamedTuple):
    """One relation's layer, and what it is called with."""

    types: Types
    conv: Any
    arguments: list[Any]
    named: dict[str, Any]

    @property
    def ends(self) -> tuple[Any, Any]:
        """Features of sources and of targets."""
        x = self.arguments[0]
        return (x[0], x[1]) if isinstance(x, tuple | list) else (x, x)

    @property
    def edge_values(self) -> torch.Tensor | None:
        """Attributes or weights of the edges."""
        return next(iter([*self.arguments[2:], *self.named.values()]), None)


@dataclass
class Programs:
    """The programs of a layer: equal ones are one, and are repeated over the relations that have it."""

    first: dict[Any, CompiledFunction] = field(default_factory=dict)  # by their texts
    known: dict[int, tuple[Any, CompiledFunction]] = field(default_factory=dict)
    repeated: dict[tuple[int, bool], CompiledFunction] = field(default_factory=dict)
    last: dict[tuple[Types, ...], CompiledFunction] = field(default_factory=dict)

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


class HeteroConv(nn.Module):
    """PyG's `HeteroConv`: relations whose layers are alike are one program, with weights per relation.

    Messages of `SAGEConv`, `GraphConv`, `GATConv`, `GATv2Conv` and `TransformerConv` are computed
    together, and added up over relations as they are made; what these layers do to the target itself
    is one product per type of nodes. Other layers, and other ways to aggregate than "sum" and "mean",
    are called relation by relation.

    >>> import torch, shorthaul as sh
    >>> relations = ("author", "writes", "paper"), ("paper", "cites", "paper")
    >>> layer = sh.relational.HeteroConv({each: sh.relational.SAGEConv((8, 8), 4) for each in relations})
    >>> x = {"author": torch.randn(3, 8), "paper": torch.randn(4, 8)}
    >>> edges = {each: torch.tensor([[0, 1, 2], [0, 0, 3]]) for each in relations}
    >>> layer(x, edges)["paper"].shape
    torch.Size([4, 4])

    Args:
        convs: A layer for each relation: (source type, name, target type).
        aggr: How a target's results of several relations become one: `"sum"` (default), `"mean"`,
            `"min"`, `"max"`, `"cat"`, or None to stack them.
    """

    def __init__(
        self, convs: Mapping[tuple[str, str, str], nn.Module], aggr: str | None = "sum"
    ) -> None:
        super().__init__()
        if aggr not in AGGREGATIONS:
            raise LayerArgumentError(
                f"aggr is {aggr!r}", f"it is one of {', '.join(map(repr, AGGREGATIONS))}"
            )
        self.aggr = aggr
        names = ["<" + "___".join(each).replace(".", "#") + ">" for each in convs]  # as PyG's
        self.convs = nn.ModuleDict(dict(zip(names, convs.values(), strict=True)))
        self.edge_types = tuple((one, name, other) for one, name, other in convs)
        self.programs = Programs()

    def reset_parameters(self) -> None:
        """Fresh parameters in every layer."""
        for each in self.convs.children():
            each.reset_parameters()  # type: ignore[operator]

    def forward(self, *dicts: Mapping[Any, Any], **named: Mapping[Any, Any]) -> dict[str, Any]:
        """New features per type of nodes.

        Args:
            dicts: Features per type of nodes, edges per relation, and what else the layers take by
                place, per relation.
            named: What they take by name, as `edge_attr_dict={relation: attributes}`.
        """
        stay_alone_after_fork()
        calls = self._read(dicts, named)
        reached: dict[str, list[Any]] = {each.types[2]: [] for each in calls}
        self.programs.last = {}
        if self.aggr not in ("sum", "mean") or torch.compiler.is_compiling():
            for each in calls:
                reached[each.types[2]].append(each.conv(*each.arguments, **each.named))
            return {name: self._aggregate(results) for name, results in reached.items()}
        counts = {name: sum(each.types[2] == name for each in calls) for name in reached}
        shares = {n: 1.0 / count if self.aggr == "mean" else 1.0 for n, count in counts.items()}
        together: dict[Any, list[Call]] = {}
        for each in calls:
            function = self._find_function(each)
            if function is None:
                share = shares[each.types[2]]
                made = each.conv(*each.arguments, **each.named)
                reached[each.types[2]].append(made if share == 1 else made * share)
            else:
                key = id(function), each.conv.training
                together.setdefault(key, []).append(each)
        for group in together.values():
            for name, made in self._run(group, shares):
                reached[name].append(made)
        owned = [each for group in together.values() for each in group]
        return {
            name: _add_own(sum(results[1:], results[0]), name, owned, shares[name])
            for name, results in reached.items()
        }

    def _read(self, dicts: Sequence[Any], named: Mapping[str, Any]) -> list[Call]:
        """What each relation's layer is called with; those that have nothing of their own are left out."""
        wrong = [name for name in named if not name.endswith("_dict")]
        if wrong:
            raise LayerArgumentError(
                f"{', '.join(wrong)} is given by name", "such names end with _dict: edge_attr_dict"
            )
        calls = []
        for types, conv in zip(self.edge_types, self.convs.values(), strict=True):
            found = [_choose(each, types) for each in dicts]
            by_name = {name.removesuffix("_dict"): _choose(v, types) for name, v in named.items()}
            if any(types in each for each in (*dicts, *named.values())):
                arguments = [value for value, is_there in found if is_there]
                more = {name: value for name, (value, is_there) in by_name.items() if is_there}
                calls.append(Call(types, conv, arguments, more))
        return calls

    def _find_function(self, call: Call) -> CompiledFunction | None:
        """The program of a relation's messages; None where its layer must be called itself."""
        conv, (source, target) = call.conv, call.ends
        given = [*call.arguments[:2], *([call.edge_values] if call.edge_values is not None else [])]
        is_plain = (
            isinstance(conv, HomogeneousConv)
            and not has_hooks(conv)
            and is_called_as_ours(conv)
            and len(call.arguments) + len(call.named) in (2, 3)
            and len(call.arguments) >= 2
            and all(_is_plain(each) for each in (source, target, *given[1:]))
            and (source.shape[-1], target.shape[-1]) == conv.widths
        )
        if not is_plain:
            return None
        function = conv.message_function(is_weighted=call.edge_values is not None)
        if function is None:
            return None
        taken = [_EDGE_ARGUMENTS.get(name) for name in function.feature_names]
        return self.programs.find(function) if all(name in taken for name in call.named) else None

    def _run(
        self, calls: list[Call], shares: Mapping[str, float]
    ) -> list[tuple[str, torch.Tensor]]:
        """What the targets of these relations hear, with the type of each set of them."""
        function = self.programs.find(
            calls[0].conv.message_function(is_weighted=calls[0].edge_values is not None)
        )
        sources = _collect_sets([(each.types[0], each.ends[0]) for each in calls])
        targets = _collect_sets([(each.types[2], each.ends[1]) for each in calls])
        part = Part(
            tuple(each.types for each in calls),
            tuple(len(rows) for _, rows in sources.sets),
            tuple(len(rows) for _, rows in targets.sets),
            tuple(zip(sources.places, targets.places, strict=True)),
            tuple(getattr(each.conv, "add_self_loops", False) for each in calls),
        )
        tensors = _stack([each.conv.weights() for each in calls])
        is_shared = any(shares[each.types[2]] != 1 for each in calls)
        if len(calls) > 1:
            function = self.programs.repeat(function, is_shared=is_shared)
            if is_shared:
                each_share = [shares[each.types[2]] for each in calls]
                like = sources.sets[0][1]
                tensors[SHARE] = torch.tensor(each_share, dtype=like.dtype, device=like.device)
        else:
            tensors = {name: value[0] for name, value in tensors.items()}
        tensors["x"] = _join(sources.sets, max(part.num_sources, part.num_targets))
        if "other" in function.feature_names:
            tensors["other"] = _join(targets.sets, part.num_targets)
        for name in _EDGE_ARGUMENTS:
            if name in function.feature_names:
                values = [_read_edge_values(each, name) for each in calls]
                tensors[name] = values[0] if len(values) == 1 else torch.cat(values)
        graph = find_part_graph(part, [each.arguments[1] for each in calls])
        self.programs.last[part.relations] = function
        heard = function(
            graph,
            {name: tensors[name] for name in function.input_names},
            training=calls[0].conv.training,
            num_targets=part.num_targets,
        )
        if is_shared and len(calls) == 1:
            heard = heard * shares[calls[0].types[2]]
        pieces = torch.split(heard, list(part.targets))
        return [(name, each) for (name, _), each in zip(targets.sets, pieces, strict=True)]

    def _aggregate(self, results: list[Any]) -> Any:
        """PyG's: one result as it is, unless they are stacked."""
        if self.aggr is None:
            return torch.stack(results, dim=1)
        if len(results) == 1:
            return results[0]
        if self.aggr == "cat":
            return torch.cat(results, dim=-1)
        stacked = torch.stack(results, dim=0)
        if self.aggr == "sum":
            return stacked.sum(0)
        if self.aggr == "mean":
            return stacked.mean(0)
        # Not amax: the gradient goes to one of equal results, as in PyG.
        return stacked.max(0).values if self.aggr == "max" else stacked.min(0).values

    def explain(self, **options: Any) -> str:
        """Every stage of each program of the last call; arguments as of `CompiledLayer.explain`."""
        if not self.programs.last:
            return "not called yet: which relations are alike is seen at a call"
        parts = []
        for relations, function in self.programs.last.items():
            named = ", ".join("__".join(each) for each in relations)
            parts.append(f"== one program for {named} ==\n\n{function.explain(**options)}")
        return "\n\n".join(parts)

    def extra_repr(self) -> str:
        """How results are aggregated."""
        return f"aggr={self.aggr}"


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see calls of `module`."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def is_called_as_ours(module: nn.Module) -> bool:
    """Whether a call of `module` does what its class of this package does: no subclass or instance has its own."""
    ours = next(each for each in type(module).__mro__ if each.__module__.startswith(f"{PACKAGE}."))
    return not _CALLS & vars(module).keys() and all(
        getattr(type(module), name) is getattr(ours, name) for name in _CALLS
    )


def _choose(values: Mapping[Any, Any], types: Types) -> tuple[Any, bool]:
    """What one argument is for a relation, as PyG finds it; and whether there is any."""
    source, _, target = types
    if types in values:
        return values[types], True
    if source == target:
        return values.get(source), source in values
    is_there = source in values or target in values
    return (values.get(source), values.get(target)), is_there


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided


class _Sets(NamedTuple):
    """Types with their features; a type whose features differ by relation is there more than once."""

    sets: list[tuple[str, torch.Tensor]]
    places: list[int]  # of each relation: its set


def _collect_sets(ends: Sequence[tuple[str, torch.Tensor]]) -> _Sets:
    sets: dict[tuple[str, int], tuple[str, torch.Tensor]] = {}
    for name, rows in ends:
        sets.setdefault((name, id(rows)), (name, rows))
    order = {key: place for place, key in enumerate(sets)}
    return _Sets(list(sets.values()), [order[name, id(rows)] for name, rows in ends])


def _stack(weights: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([each[name] for each in weights]) for name in weights[0]}


def _join(sets: Sequence[tuple[str, torch.Tensor]], rows: int) -> torch.Tensor:
    """All sets' rows, one set after the other, and zeros up to `rows`."""
    joined = [each for _, each in sets]
    whole = joined[0] if len(joined) == 1 else torch.cat(joined)
    missing = rows - whole.shape[0]
    return functional.pad(whole, (0, 0, 0, missing)) if missing else whole


def _read_edge_values(call: Call, name: str) -> torch.Tensor:
    """Attributes of a relation's edges and its loops, or a number for each."""
    values, edges = call.edge_values, call.arguments[1]
    assert values is not None
    if len(values) != edges.shape[1]:
        raise LayerArgumentError(
            f"{_EDGE_ARGUMENTS[name]} of {call.types} has {len(values):,} rows, but there are "
            f"{edges.shape[1]:,} edges",
            "give one row per edge",
        )
    if name == "weight":
        return values.reshape(-1)
    values = values.unsqueeze(1) if values.dim() == 1 else values.flatten(1)
    if not getattr(call.conv, "add_self_loops", False):
        return values
    count = min(len(each) for each in call.ends)
    return replace_loop_features(edges, values, count, call.conv.fill_value)


def _add_own(heard: Any, name: str, calls: Sequence[Call], share: float) -> Any:
    """What targets of a type are given besides what they hear: one product for all relations that
    have the same features of them.
    """
    matrices: dict[int, list[torch.Tensor]] = {}
    rows: dict[int, torch.Tensor] = {}
    biases = []
    for each in calls:
        if each.types[2] != name:
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
