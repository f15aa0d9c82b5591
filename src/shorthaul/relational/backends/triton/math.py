# Constants are upper case, as in Triton's own kernels; Triton's decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Functions of single elements that Triton's language does not have: the generated loops call them.

Written with the language's own operations only, so that Triton's interpreter runs what a GPU runs.
"""

import triton
import triton.language as tl


@triton.jit
def expm1(x):
    """exp(x) - 1 without losing the digits of a small x."""
    near = x * (1.0 / 10.0) + 1.0  # the series, from its tenth term inwards
    near = near * x * (1.0 / 9.0) + 1.0
    near = near * x * (1.0 / 8.0) + 1.0
    near = near * x * (1.0 / 7.0) + 1.0
    near = near * x * (1.0 / 6.0) + 1.0
    near = near * x * (1.0 / 5.0) + 1.0
    near = near * x * (1.0 / 4.0) + 1.0
    near = near * x * (1.0 / 3.0) + 1.0
    near = near * x * (1.0 / 2.0) + 1.0
    return tl.where(tl.abs(x) < 0.25, near * x, tl.exp(x) - 1.0)


@triton.jit
def tanh(x):
    """The hyperbolic tangent; powers of negative numbers only, so nothing overflows."""
    shrunk = expm1(-2.0 * tl.abs(x))
    size = -shrunk / (2.0 + shrunk)
    return tl.where(x < 0, -size, size)


@triton.jit
def gelu(x):
    """x times the normal distribution's share below x, exactly (not the tanh approximation)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_slope(x):
    """The derivative of `gelu`."""
    normal = tl.exp(-0.5 * x * x) * 0.3989422804014327
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * normal


@triton.jit
def silu(x):
    """x times its sigmoid."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def silu_slope(x):
    """The derivative of `silu`."""
    gate = 1.0 / (1.0 + tl.exp(-x))
    return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def is_kept(state, element, LIMIT: tl.constexpr):
    """Dropout's choice for each element: see `random_stream`, which says the same in PyTorch."""
    start = state.to(tl.uint32, bitcast=True)
    mixed = _mix((element.to(tl.uint32) * 0x9E3779B9) ^ start)
    return mixed.to(tl.int64) >= LIMIT
