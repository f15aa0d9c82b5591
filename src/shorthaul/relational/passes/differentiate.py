"""Gradients as steps of the same program: what the passes improve once, they improve again here.

Rewrites::

    y = linear x, W {way=relation} : 64 over edge
    ->
    y  = linear x, W {way=relation}
    dx = linear dy, W {way=relation, transposed=True} : 64 over edge
    dW = outer x, dy {way=relation}                   : 64 64 over relation

The result holds the forward steps, one input for the gradient of each output, and one output for each
gradient that was asked for. Its forward and backward parts are separated when it is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.program import Builder, Program, drop_unused
from shorthaul.relational.ir.step import Shape, Step

GRADIENT = "gradient_of_"


def differentiate(program: Program, inputs: Sequence[str]) -> Program:
    """`program` with the gradients of `inputs` as further outputs, named `gradient_of_<input>`."""
    make = Builder(program.name, program.steps)
    needing = _depending_on(program, inputs)
    gradients: dict[str, str] = {}
    for name, value in program.outputs:
        if value in needing:
            step = program[value]
            arrived = make.input(GRADIENT + name, step.shape, step.space, "gradient")
            _accumulate(make, gradients, value, arrived)
    for step in reversed(program.steps):
        if step.name in gradients and step.operands:
            _pass_on(make, gradients, needing, step)
    made = [
        (GRADIENT + name, gradients.get(name) or _zeros(make, program[name])) for name in inputs
    ]
    return drop_unused(make.build([*program.outputs, *made]))


def _depending_on(program: Program, inputs: Sequence[str]) -> set[str]:
    found = set(inputs)
    for step in program.steps:
        if any(operand in found for operand in step.operands) and not step.get("detached"):
            found.add(step.name)
    return found


def _pass_on(make: Builder, gradients: dict[str, str], needing: set[str], step: Step) -> None:
    if step.get("detached"):
        return
    for operand, gradient in zip(step.operands, _gradients_of(make, gradients, step), strict=True):
        if operand in needing and gradient is not None:
            fitted = _sum_to(make, gradient, make.steps[operand].shape)
            _accumulate(make, gradients, operand, fitted)


def _gradients_of(make: Builder, gradients: dict[str, str], step: Step) -> Sequence[str | None]:
    dy = gradients[step.name]
    if step.operation in POINTWISE:
        rule = POINTWISE[step.operation].gradients
        if rule is None:
            return (None,) * len(step.operands)
        return rule(make, dy, step.operands, step.name, dict(step.attributes))
    return _RULES[step.operation](make, step, dy)


def _accumulate(make: Builder, gradients: dict[str, str], value: str, more: str) -> None:
    have = gradients.get(value)
    gradients[value] = more if have is None else make.add("add", have, more, name=f"d_{value}")


def _sum_to(make: Builder, gradient: str, shape: Shape) -> str:
    """Add up what broadcasting had repeated."""
    have = make.steps[gradient].shape
    if have == shape:
        return gradient
    missing = len(have) - len(shape)
    axes = tuple(
        axis
        for axis, size in enumerate(have)
        if size != 1 and (axis < missing or shape[axis - missing] == 1)
    )
    summed = make.add("sum", gradient, axes=axes) if axes else gradient
    return make.add("reshape", summed, shape=shape) if missing else summed


def _zeros(make: Builder, step: Step) -> str:
    return make.add("zero", step.name, name=f"d_{step.name}")


def _expand(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    return (make.add("reduce", dy, kind="sum", way=step["way"]),)


def _reduce(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    (x,) = step.operands
    to, way = make.steps[x].space, step["way"]
    if step["kind"] == "sum":
        return (make.add("expand", dy, to=to, way=way),)
    # Every row that attains the extremum takes an equal share, as in PyTorch.
    attains = make.add("equal", x, make.add("expand", step.name, to=to, way=way))
    shares = make.add("divide", dy, make.add("reduce", attains, kind="sum", way=way))
    return (make.add("multiply", make.add("expand", shares, to=to, way=way), attains),)


def _linear(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    x, w = step.operands
    way, transposed = step["way"], step["transposed"]
    dx = make.add("linear", dy, w, way=way, transposed=not transposed)
    sides = (dy, x) if transposed else (x, dy)
    heads = len(make.steps[w].shape) == 3
    return dx, make.add("outer", *sides, way=way, heads=heads)


def _concat(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    start, parts = 0, []
    for operand in step.operands:
        stop = start + make.steps[operand].shape[step["axis"]]
        parts.append(make.add("slice", dy, axis=step["axis"], start=start, stop=stop))
        start = stop
    return parts


def _slice(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    size = make.steps[step.operands[0]].shape[step["axis"]]
    return (make.add("place", dy, axis=step["axis"], start=step["start"], size=size),)


def _reshape(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    return (make.add("reshape", dy, shape=make.steps[step.operands[0]].shape),)


def _sum(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    return (make.add("broadcast", dy, shape=make.steps[step.operands[0]].shape),)


def _refuse(make: Builder, step: Step, dy: str) -> Sequence[str | None]:
    raise NotImplementedError(f"{step.operation} is a gradient itself and has none of its own")


_RULES: dict[str, Callable[[Builder, Step, str], Sequence[str | None]]] = {
    "expand": _expand,
    "reduce": _reduce,
    "restrict": lambda make, step, dy: (make.add("extend", dy),),
    "extend": lambda make, step, dy: (make.add("restrict", dy),),
    "linear": _linear,
    "outer": _refuse,
    "sum": _sum,
    "broadcast": lambda make, step, dy: (dy,),
    "reshape": _reshape,
    "transpose": lambda make, step, dy: (make.add("transpose", dy),),
    "slice": _slice,
    "place": lambda make, step, dy: (
        make.add(
            "slice",
            dy,
            axis=step["axis"],
            start=step["start"],
            stop=step["start"] + make.steps[step.operands[0]].shape[step["axis"]],
        ),
    ),
    "concat": _concat,
}
