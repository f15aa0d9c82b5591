"""Operations on single elements: what each computes, in PyTorch, C++ and Triton, and its slope.

A table and nothing else. `cpp` and `triton` are expressions in `{0}`, `{1}` and the attributes (in
Triton also `{real}`, the type that is computed in); `gradients` builds, for each operand, its gradient
from the result's, out of steps of this same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Maker(Protocol):
    """What makes steps: a `Builder`."""

    def add(self, operation: str, *operands: str, **attributes: Any) -> str:
        """Make a value and return its name."""


# (maker, the result's gradient, operands, result, attributes) -> the operands' gradients
Gradients = Callable[[Maker, str, tuple[str, ...], str, dict[str, Any]], tuple[str, ...]]


@dataclass(frozen=True)
class Pointwise:
    """One row of the table."""

    operands: int
    torch: Callable[..., torch.Tensor]
    cpp: str
    gradients: Gradients | None = None  # None: a step function, whose slope is zero
    is_costly: bool = False  # worth keeping rather than computing again
    triton: str = ""  # empty: written as in C++


def _slope(name: str, *attributes: str) -> Gradients:
    """The slope is the operation `name` of the operand, with the same `attributes`."""

    def gradients(
        make: Maker, dy: str, operands: tuple[str, ...], result: str, have: dict[str, Any]
    ) -> tuple[str, ...]:
        slope = make.add(name, operands[0], **{key: have[key] for key in attributes})
        return (make.add("multiply", dy, slope),)

    return gradients


def _choose(*, is_maximum: bool) -> Gradients:
    """Of two equal operands each gets half, as in PyTorch."""

    def gradients(
        make: Maker, dy: str, operands: tuple[str, ...], result: str, have: dict[str, Any]
    ) -> tuple[str, ...]:
        order = operands if is_maximum else operands[::-1]
        return (
            make.add("multiply", dy, make.add("share_above", *order)),
            make.add("multiply", dy, make.add("share_above", *order[::-1])),
        )

    return gradients


def _elu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.expm1(x))


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    normal = torch.exp(-0.5 * x * x) * 0.3989422804014327
    return 0.5 * (1 + torch.erf(x * 0.7071067811865476)) + x * normal


def _silu_slope(x: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


POINTWISE: dict[str, Pointwise] = {
    "add": Pointwise(2, torch.add, "({0} + {1})", lambda make, dy, o, r, a: (dy, dy)),
    "subtract": Pointwise(
        2,
        torch.sub,
        "({0} - {1})",
        lambda make, dy, o, r, a: (dy, make.add("negative", dy)),
    ),
    "multiply": Pointwise(
        2,
        torch.mul,
        "({0} * {1})",
        lambda make, dy, o, r, a: (make.add("multiply", dy, o[1]), make.add("multiply", dy, o[0])),
    ),
    "divide": Pointwise(
        2,
        torch.div,
        "({0} / {1})",
        lambda make, dy, o, r, a: (
            make.add("divide", dy, o[1]),
            make.add("negative", make.add("multiply", make.add("divide", dy, o[1]), r)),
        ),
    ),
    "maximum": Pointwise(
        2,
        torch.maximum,
        "({0} > {1} || {0} != {0} ? {0} : {1})",
        _choose(is_maximum=True),
        triton="tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    ),
    "minimum": Pointwise(
        2,
        torch.minimum,
        "({0} < {1} || {0} != {0} ? {0} : {1})",
        _choose(is_maximum=False),
        triton="tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    ),
    "share_above": Pointwise(
        2,
        lambda x, y: ((x > y).to(x.dtype) + (x >= y).to(x.dtype)) * 0.5,
        "((real({0} > {1}) + real({0} >= {1})) * real(0.5))",
        triton="((({0} > {1}).to({real}) + ({0} >= {1}).to({real})) * 0.5)",
    ),
    "equal": Pointwise(  # as they are stored: the one may come from memory, where it has fewer bits
        2,
        lambda x, y: (x == y).to(x.dtype),
        "real(Number::load(Number::store({0})) == Number::load(Number::store({1})))",
        triton="({0}.to({stored}).to({real}) == {1}.to({stored}).to({real})).to({real})",
    ),
    "scale": Pointwise(
        1,
        lambda x, by: x * by,
        "({0} * real({by}))",
        lambda make, dy, o, r, a: (make.add("scale", dy, by=a["by"]),),
        triton="({0} * {by})",
    ),
    "shift": Pointwise(
        1,
        lambda x, by: x + by,
        "({0} + real({by}))",
        lambda make, dy, o, r, a: (dy,),
        triton="({0} + {by})",
    ),
    "zero": Pointwise(  # not a multiple: of infinity that would be no number
        1, torch.zeros_like, "real(0)", triton="(({0} == {0}).to({real}) * 0.0)"
    ),
    "negative": Pointwise(
        1, torch.neg, "(-{0})", lambda make, dy, o, r, a: (make.add("negative", dy),)
    ),
    "reciprocal": Pointwise(
        1,
        torch.reciprocal,
        "(real(1) / {0})",
        lambda make, dy, o, r, a: (
            make.add("negative", make.add("multiply", dy, make.add("multiply", r, r))),
        ),
        triton="(1.0 / {0})",
    ),
    "exp": Pointwise(
        1,
        torch.exp,
        "exponential({0})",
        lambda make, dy, o, r, a: (make.add("multiply", dy, r),),
        is_costly=True,
        triton="tl.exp({0})",
    ),
    "log": Pointwise(
        1, torch.log, "std::log({0})", _slope("reciprocal"), is_costly=True, triton="tl.log({0})"
    ),
    "sqrt": Pointwise(
        1,
        torch.sqrt,
        "std::sqrt({0})",
        lambda make, dy, o, r, a: (make.add("scale", make.add("divide", dy, r), by=0.5),),
        triton="tl.sqrt({0})",
    ),
    "absolute": Pointwise(1, torch.abs, "std::abs({0})", _slope("sign"), triton="tl.abs({0})"),
    "sign": Pointwise(
        1,
        torch.sign,
        "real(({0} > 0) - ({0} < 0))",
        triton="(({0} > 0).to({real}) - ({0} < 0).to({real}))",
    ),
    "relu": Pointwise(
        1, torch.relu, "relu({0})", _slope("step"), triton="tl.where({0} < 0, 0.0, {0})"
    ),
    "step": Pointwise(
        1, lambda x: (x > 0).to(x.dtype), "real({0} > 0)", triton="({0} > 0).to({real})"
    ),
    "leaky_relu": Pointwise(
        1,
        lambda x, slope: torch.where(x > 0, x, x * slope),
        "({0} > 0 ? {0} : {0} * real({slope}))",
        _slope("leaky_step", "slope"),
        triton="tl.where({0} > 0, {0}, {0} * {slope})",
    ),
    "leaky_step": Pointwise(
        1,
        lambda x, slope: torch.where(x > 0, torch.ones_like(x), torch.full_like(x, slope)),
        "({0} > 0 ? real(1) : real({slope}))",
        # Not where(): of two constants it would make a number of 32 bits.
        triton="(({0} > 0).to({real}) * (1.0 - {slope}) + {slope})",
    ),
    "elu": Pointwise(
        1,
        _elu,
        "({0} > 0 ? {0} : std::expm1({0}))",
        _slope("elu_slope"),
        is_costly=True,
        triton="tl.where({0} > 0, {0}, expm1({0}))",
    ),
    "elu_slope": Pointwise(
        1,
        lambda x: torch.where(x > 0, torch.ones_like(x), torch.exp(x)),
        "({0} > 0 ? real(1) : exponential({0}))",
        is_costly=True,
        triton="tl.where({0} > 0, 1.0, tl.exp({0}))",
    ),
    "sigmoid": Pointwise(
        1,
        torch.sigmoid,
        "(real(1) / (real(1) + exponential(-{0})))",
        lambda make, dy, o, r, a: (
            make.add(
                "multiply",
                dy,
                make.add("multiply", r, make.add("shift", make.add("negative", r), by=1.0)),
            ),
        ),
        is_costly=True,
        triton="(1.0 / (1.0 + tl.exp(-{0})))",
    ),
    "tanh": Pointwise(
        1,
        torch.tanh,
        "std::tanh({0})",
        lambda make, dy, o, r, a: (
            make.add(
                "multiply",
                dy,
                make.add("shift", make.add("negative", make.add("multiply", r, r)), by=1.0),
            ),
        ),
        is_costly=True,
        triton="tanh({0})",
    ),
    "sine": Pointwise(
        1, torch.sin, "std::sin({0})", _slope("cosine"), is_costly=True, triton="tl.sin({0})"
    ),
    "cosine": Pointwise(
        1,
        torch.cos,
        "std::cos({0})",
        lambda make, dy, o, r, a: (
            make.add("negative", make.add("multiply", dy, make.add("sine", o[0]))),
        ),
        is_costly=True,
        triton="tl.cos({0})",
    ),
    "gelu": Pointwise(
        1, torch.nn.functional.gelu, "gelu({0})", _slope("gelu_slope"), is_costly=True
    ),
    "gelu_slope": Pointwise(1, _gelu_slope, "gelu_slope({0})", is_costly=True),
    "silu": Pointwise(
        1, torch.nn.functional.silu, "silu({0})", _slope("silu_slope"), is_costly=True
    ),
    "silu_slope": Pointwise(1, _silu_slope, "silu_slope({0})", is_costly=True),
}
