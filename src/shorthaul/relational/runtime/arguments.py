"""What a compiled layer is called with, checked and brought into the form that kernels read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.graphs import Block, RelationalGraph
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.topology.topology import Topology
from shorthaul.tensors.unified_tensor import UnifiedTensor, borrow_memory

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def require_known_sizes(layer: str, size_names: Sequence[str], given: Collection[str]) -> None:
    """Raise if a layer is made with a keyword that is neither a width nor an option of its function."""
    known = ["relations", "node_types", "without", "memory_budget", *size_names]
    _require_known(layer, "made", given, known)


def require_graph(layer: str, feature_names: Sequence[str], relations: int, given: Any) -> None:
    """Raise unless a layer's first argument is a graph: PyG's layers take it second."""
    if isinstance(given, RelationalGraph | Block):
        return
    names = ", ".join(feature_names)
    typed = ", edge_type" if relations > 1 else ""
    numbers = "num_nodes=..." + (f", num_relations={relations}" if typed else "")
    raise LayerArgumentError(
        f"`{layer}` was called with a {type(given).__name__} where its graph goes",
        f"wrong: layer(x, edge_index{typed}). Right: layer(graph, {names}) with\n"
        f"  graph = sh.RelationalGraph.from_edge_index(edge_index{typed}, {numbers}), or a Block",
    )


def name_features(
    layer: str, names: Sequence[str], features: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The features of a call by name; those that the layer does not have, or twice, are an error."""
    if len(features) > len(names):
        raise LayerArgumentError(
            f"`{layer}` was called with {len(features)} features, and has {len(names)}",
            f"pass the graph, then {', '.join(names) or 'nothing'}",
        )
    found = dict(zip(names, features, strict=False))
    twice = [name for name in named if name in found]
    if twice:
        raise LayerArgumentError(
            f"`{layer}` was called with {', '.join(twice)} twice: by place and by name",
            "pass each feature once",
        )
    _require_known(layer, "called", named, list(names))
    return found | dict(named)


def _require_known(layer: str, done: str, given: Collection[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        close = [
            found for name in unknown for found in difflib.get_close_matches(name, known, 1, 0.7)
        ]
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise LayerArgumentError(
            f"`{layer}` was {done} with {', '.join(unknown)}, which it does not have",
            f"{hint}It takes {', '.join(known) or 'nothing'}",
        )


def cast_as_autocast(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Inside `torch.autocast`, what `nn.Linear` would compute with: all but float64 in its dtype."""
    device = next((each.device.type for each in tensors.values() if each is not None), "cpu")
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return {
        name: value.to(dtype) if value is not None and is_cast(value) else value
        for name, value in tensors.items()
    }


def device_of(tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """Where the layer runs: on the GPU of its first tensor, or on the CPU."""
    first = next((each for each in tensors.values() if each is not None), None)
    return first.device if first is not None and first.is_cuda else torch.device("cpu")


def is_cast(value: torch.Tensor) -> bool:
    """Whether autocast would give `value` another dtype."""
    return value.is_floating_point() and value.dtype is not torch.float64


def count_relations(names_per_relation: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> int:
    """How many relations the layer's weights are for; a layer without such weights sees one."""
    for name in names_per_relation:
        if tensors.get(name) is not None:
            return tensors[name].shape[0]
    return 1


def read_features(value: Any, rows: torch.Tensor | None = None) -> Any:
    """A unified tensor as a plain one: its own memory, or the rows that are asked for.

    In memory nothing is copied unless `rows` are given. On disk the rows are read by one planned
    fetch; without `rows`, all of them.
    """
    if type(value) in _PLAIN or not isinstance(value, UnifiedTensor):
        return value
    if rows is not None:
        return value.gather(rows, device=rows.device)
    if value.requires_grad and torch.is_grad_enabled():
        return value.cpu()
    return borrow_memory(value)


def read_all_features(
    program: Program, tensors: Mapping[str, Any], block: Block | None
) -> Mapping[str, Any]:
    """Unified tensors among the arguments as plain ones.

    With a block, a unified tensor is the table of the whole graph, of which the block's rows are read.
    """
    if all(type(each) in _PLAIN for each in tensors.values()):
        return tensors
    kinds = {step.name: step["kind"] for step in program.inputs}
    found = dict(tensors)
    for name, value in tensors.items():
        rows = None
        if block is not None and isinstance(value, UnifiedTensor):
            kind = kinds.get(name)
            sources = block.source_nodes
            targets = sources[: block.num_targets]
            rows = {"node": sources, "target": targets, "edge": block.edges}.get(str(kind))
        found[name] = read_features(value, rows)
    return found


def prepare_arguments(
    program: Program, topology: Topology, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The program's inputs: checked, edges in the topology's order, a row per row of their space."""
    found: dict[str, torch.Tensor] = {}
    first: torch.Tensor | None = None
    for step in program.inputs:
        value = tensors.get(step.name)
        if value is None:
            raise LayerArgumentError(
                f"{program.name} needs `{step.name}`", f"pass {step.name}=<tensor>"
            )
        first = value if first is None else first
        rows = topology.rows(step.space)
        shape = (*topology.tensor_shape(step.space), *step.shape)
        if value.shape != shape:
            raise LayerArgumentError(
                f"{program.name}: `{step.name}` has shape {tuple(value.shape)}, expected "
                f"{shape}: {_rows(step.space, rows)} of {step.shape or 'one number'}",
                "check the graph and the layer's sizes",
            )
        if value.dtype not in DTYPES or value.dtype is not first.dtype:
            raise LayerArgumentError(
                f"{program.name}: `{step.name}` is {value.dtype}, expected {first.dtype} "
                "like the others, one of " + ", ".join(map(str, DTYPES)),
                f"convert it: {step.name}.to({first.dtype})",
            )
        if value.device != topology.edge_ids.device:
            raise LayerArgumentError(
                f"{program.name}: `{step.name}` is on {value.device}, expected "
                f"{topology.edge_ids.device}",
                "move it there; layers run on CPUs and on CUDA, all tensors on one device",
            )
        if step["kind"] == "edge":
            value = value.index_select(0, topology.edge_ids)
        if step.space is Space.ONE or step.space is Space.RELATION_TYPE:
            value = value.reshape(rows, *step.shape)
        found[step.name] = lay_out(value)
    return found


def lay_out(value: torch.Tensor) -> torch.Tensor:
    """`value` as kernels read it: its rows one after the other, no sign left to be turned.

    The imaginary part of a conjugate is a view with such a sign; what its memory holds is not its value.
    """
    return value.resolve_neg().contiguous()


def return_results(
    program: Program, topology: Topology, results: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The program's outputs, those of edges in the order in which the caller gave the edges."""
    return tuple(
        value.index_select(0, topology.edge_places())
        if program[name].space is Space.EDGE
        else value
        for name, value in zip(program.output_values(), results, strict=True)
    )


def arrange_arrived(
    program: Program, topology: Topology, arrived: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The gradients of `return_results`, edges in the topology's order."""
    return [
        value.index_select(0, topology.edge_ids) if program[name].space is Space.EDGE else value
        for name, value in zip(program.output_values(), arrived, strict=True)
    ]


def return_gradient(
    program: Program, topology: Topology, name: str, gradient: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """A prepared argument's gradient in the form in which the argument was given."""
    if program[name]["kind"] == "edge":
        given = torch.empty_like(gradient)
        given[topology.edge_ids.long()] = gradient
        gradient = given
    return gradient.reshape(like.shape)


def _rows(space: Space, rows: int) -> str:
    return "one" if space is Space.ONE else f"{rows:,} {space.value} rows"
