"""What does one kernel call cost?

One hundred numbers are doubled, too few to take any time themselves, along every way in: the C
function through ctypes alone, the kernel with its contracts, and the operator that a model calls,
which also makes the result's tensor; the operator once more as the dispatcher would call it if it
were left to it. PyTorch's own `x * 2` is there for scale. The goal is less than 15 microseconds
through the operator.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    NumberArgument,
    TensorArgument,
    define_operator,
    load_kernel,
)

NUMBERS = 100
TORCH = "x * 2 by PyTorch"

SCALE = CppSource(
    "scale_call",
    "void scale(const float* x, double factor, float* out, int64_t n) {\n"
    "  const float by = static_cast<float>(factor);\n"
    "  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * by;\n"
    "}",
    (
        Function(
            "scale",
            (
                TensorArgument("x", torch.float32, ("n",)),
                NumberArgument("factor", "float64"),
                TensorArgument("out", torch.float32, ("n",), is_written=True),
                DimensionArgument("n"),
            ),
        ),
    ),
)


def _scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    call_scale(x, factor, out)
    return out


def _fake_scale(x: torch.Tensor, factor: float) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.factor = inputs[1]


call_scale = load_kernel(SCALE).scale
scale_without_gradient = define_operator(
    "bench_scale_without_gradient(Tensor x, float factor) -> Tensor", cpu=_scale, fake=_fake_scale
)
scale_with_gradient = define_operator(
    "bench_scale_with_gradient(Tensor x, float factor) -> Tensor",
    cpu=_scale,
    fake=_fake_scale,
    setup_context=_keep_factor,
    backward=lambda ctx, gradient: (gradient * ctx.factor, None),
)


def measure(answer: Answer) -> None:
    x, out = torch.randn(NUMBERS), torch.empty(NUMBERS)
    tracked = x.clone().requires_grad_()
    c_function, dispatched = open_c_function(), scale_with_gradient.overload
    pointer, out_pointer = x.data_ptr(), out.data_ptr()

    def call_c_function() -> torch.Tensor:
        c_function(pointer, 2.0, out_pointer, NUMBERS)
        return out

    def call_kernel() -> torch.Tensor:
        call_scale(x, 2.0, out)
        return out

    answer.state(tensor=f"{NUMBERS} float32, in the cache")
    answer.compare(
        f"double {NUMBERS} numbers",
        [
            Arm(TORCH, lambda: x * 2),
            Arm("the C function, through ctypes", call_c_function),
            Arm("the kernel, into a given tensor", call_kernel),
            Arm("the operator, without a gradient", lambda: scale_without_gradient(x, 2.0)),
            Arm("the operator, its gradient not needed", lambda: scale_with_gradient(x, 2.0)),
            Arm("the operator, its gradient needed", lambda: scale_with_gradient(tracked, 2.0)),
            Arm("the dispatcher, its gradient not needed", lambda: dispatched(x, 2.0)),
            Arm("the dispatcher, its gradient needed", lambda: dispatched(tracked, 2.0)),
            Arm("x * 2 by PyTorch, its gradient needed", lambda: tracked * 2),
        ],
        baseline=TORCH,
        same=same_bits,
    )


def open_c_function() -> Any:
    """The function as ctypes gives it, with nothing around it."""
    c_function = ctypes.CDLL(str(load_kernel(SCALE).entry.library))["scale"]
    c_function.restype = None
    c_function.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int64]
    return c_function


if __name__ == "__main__":
    answer_question(measure)
