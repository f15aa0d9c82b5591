"""A program run by plain PyTorch, one step after the other: the oracle, and the way without a compiler.

It runs any program between any two passes, so a pass is right when the numbers before and after it
agree. Nothing here is clever: every value of every space is a tensor with one row per row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from shorthaul.relational.ir.dropout_mask import keep_mask
from shorthaul.relational.ir.operations import broadcast_shapes
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.topology.topology import Topology

Values = Mapping[str, torch.Tensor]


def run(
    program: Program, topology: Topology, inputs: Values, seed: int = 0
) -> dict[str, torch.Tensor]:
    """The outputs of `program`. Edge inputs have their rows in the topology's order of edges."""
    like = next(iter(inputs.values()))
    values: dict[str, torch.Tensor] = {}
    for step in program.steps:
        if step.operation == "input":
            values[step.name] = inputs[step.name]
        else:
            operands = [values[operand] for operand in step.operands]
            values[step.name] = run_step(step, program, topology, operands, like, seed)
    return {name: values[value] for name, value in program.outputs}


def run_step(
    step: Step,
    program: Program,
    topology: Topology,
    operands: list[torch.Tensor],
    like: torch.Tensor,
    seed: int,
) -> torch.Tensor:
    """The value of one step; `like` has the dtype and device."""
    made_from = [program[operand] for operand in step.operands]
    attributes = dict(step.attributes)
    attributes.pop("detached", None)
    if step.operation in POINTWISE:
        shape = broadcast_shapes(*(each.shape for each in made_from))
        aligned = [
            value.reshape(value.shape[0], *_aligned(each, len(shape)))
            for value, each in zip(operands, made_from, strict=True)
        ]
        return POINTWISE[step.operation].torch(*aligned, **attributes)
    if step.operation == "count":
        pointers = topology.members(step["of"], step["way"]).pointers
        return (pointers[1:] - pointers[:-1]).to(like.dtype)
    if step.operation == "keep":
        rows = topology.rows(step.space)
        return keep_mask(rows, step.size, step["probability"], step["stream"], seed, like).reshape(
            rows, *step.shape
        )
    return _RUN[step.operation](step, made_from, topology, operands)


def _aligned(step: Step, rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(step.shape)) + step.shape


def _expand(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    result: torch.Tensor = operands[0].index_select(0, topology.way(step.space, step["way"]))
    return result


def _reduce(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    (x,) = operands
    index = topology.way(made[0].space, step["way"]).long()
    rows = topology.rows(step.space)
    result = x.new_zeros(rows, *x.shape[1:])
    if step["kind"] == "sum":
        return result.index_add_(0, index, x)
    kinds = {"max": "amax", "min": "amin"}
    spread = index.reshape(-1, *(1,) * (x.dim() - 1)).expand_as(x)
    reduced: torch.Tensor = result.scatter_reduce(
        0, spread, x, kinds[step["kind"]], include_self=False
    )
    return reduced


def _restrict(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    result: torch.Tensor = operands[0][: topology.num_targets]
    return result


def _extend(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    (x,) = operands
    missing = topology.rows(Space.NODE) - topology.num_targets
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


def _linear(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    x, w = operands
    if step["transposed"]:
        w = w.transpose(-1, -2)
    if step["way"] is None:
        return _multiply(x, w, len(made[1].shape) == 3)
    result = x.new_zeros(x.shape[0], *step.shape)
    for number, rows in _segments(topology, made[0].space, step["way"]):
        result[rows] = _multiply(x[rows], w[number], len(made[1].shape) == 3)
    return result


def _multiply(x: torch.Tensor, w: torch.Tensor, has_heads: bool) -> torch.Tensor:
    """`w` is one matrix, or one per row; with heads, one per head."""
    if not has_heads:
        if w.dim() == 2:
            return x @ w
        return torch.einsum("r...i,rio->r...o", x, w)
    if w.dim() == 3:
        return torch.einsum("rh...i,hio->rh...o", x, w)
    return torch.einsum("rh...i,rhio->rh...o", x, w)


def _segments(topology: Topology, space: Space, way: str) -> Any:
    pointers, rows = topology.members(space, way)
    limits = pointers.tolist()
    for number, (start, stop) in enumerate(itertools.pairwise(limits)):
        if stop > start:
            yield number, slice(start, stop) if rows is None else rows[start:stop].long()


def _outer(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    x, y = operands
    inside = "rh...i,rh...o->" if step["heads"] else "r...i,r...o->"
    heads = "h" if step["heads"] else ""
    if step["way"] is None:
        return torch.einsum(f"{inside}r{heads}io", x, y)
    result = x.new_zeros(topology.rows(step.space), *step.shape)
    for number, rows in _segments(topology, made[0].space, step["way"]):
        if step["heads"]:
            result[number] = torch.einsum(f"{inside}{heads}io", x[rows], y[rows])
        else:  # one product, where einsum would make a batch of them
            left, right = (side[rows].flatten(0, -2) for side in (x, y))
            result[number] = left.t() @ right
    return result


def _sum(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    result: torch.Tensor = operands[0].sum([axis + 1 for axis in step["axes"]], keepdim=True)
    return result


def _broadcast(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    (x,) = operands
    aligned = x.reshape(x.shape[0], *_aligned(made[0], len(step.shape)))
    return aligned.expand(x.shape[0], *step.shape).contiguous()


def _place(step: Step, made: Any, topology: Topology, operands: Any) -> torch.Tensor:
    (x,) = operands
    result = x.new_zeros(x.shape[0], *step.shape)
    axis = step["axis"] + 1
    result.narrow(axis, step["start"], x.shape[axis]).copy_(x)
    return result


_RUN: dict[str, Callable[[Step, Any, Topology, Any], torch.Tensor]] = {
    "expand": _expand,
    "reduce": _reduce,
    "restrict": _restrict,
    "extend": _extend,
    "linear": _linear,
    "outer": _outer,
    "sum": _sum,
    "broadcast": _broadcast,
    "reshape": lambda step, made, topology, o: o[0].reshape(o[0].shape[0], *step.shape),
    "transpose": lambda step, made, topology, o: o[0].transpose(-1, -2).contiguous(),
    "slice": lambda step, made, topology, o: (
        o[0].narrow(step["axis"] + 1, step["start"], step["stop"] - step["start"]).contiguous()
    ),
    "place": _place,
    "concat": lambda step, made, topology, o: torch.cat(list(o), step["axis"] + 1),
}
