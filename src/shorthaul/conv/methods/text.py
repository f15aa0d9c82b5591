"""The lines that every convolution kernel begins with: its types, and the names of its numbers.

>>> print(emit_numbers(("thread_bytes", "batch")))
[[maybe_unused]] const int64_t thread_bytes = numbers[0], batch = numbers[1];
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shorthaul.conv.layout.function import SHAPE_NAMES, SIZE_NAMES, count_variable, sum_dtype
from shorthaul.conv.layout.workspace import Workspace
from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.conv.problem.machine import VectorMachine

STORAGE = {
    torch.float32: "AsReal",
    torch.float64: "AsReal",
    torch.bfloat16: "AsBfloat16",
    torch.float16: "AsFloat16",
}

ACTIVATION_TYPES = {
    None: "NoActivation",
    "relu": "Relu",
    "relu6": "Relu6",
    "hardswish": "Hardswish",
    "silu": "Silu",
    "gelu": "Gelu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}


def emit_preamble(
    dtype: torch.dtype,
    machine: VectorMachine,
    channels_last: bool,
    activation: str | None,
    headers: tuple[str, ...],
    *,
    has_pairs: bool = False,
    workspace: Workspace | None = None,
) -> str:
    """The types that the rest of a kernel's text is written in."""
    real = "double" if dtype == torch.float64 else "float"
    pairs = "#define SHORTHAUL_PAIRS\n" if has_pairs else ""
    includes = "\n".join(f'#include "shorthaul/{header}.h"' for header in headers)
    return f"""\
#define SHORTHAUL_REAL {real}
#define SHORTHAUL_LANES {machine.lanes(sum_dtype(dtype).itemsize)}
{pairs}{includes}

using namespace shorthaul;
using Value = {STORAGE[dtype]};
using Activation = {ACTIVATION_TYPES[activation]};
constexpr bool channels_last = {str(channels_last).lower()};
{"" if workspace is None else workspace.emit()}"""


def emit_numbers(names: tuple[str, ...]) -> str:
    """The numbers of a call by their names."""
    values = ", ".join(f"{name} = numbers[{place}]" for place, name in enumerate(names))
    return f"[[maybe_unused]] const int64_t {values};"


def emit_sizes_and_shape(names: tuple[str, ...], shape: KernelShape | None) -> str:
    """The first lines of every kernel: its numbers, and the structures that headers take."""
    variable = count_variable(shape)
    constants = () if shape is None else shape.values()[variable:]
    values = (*SHAPE_NAMES[:variable], *map(str, constants))
    kind = "const" if variable else "constexpr"
    return f"""\
  {emit_numbers(names)}
  [[maybe_unused]] const int64_t* const places = numbers + {len(names)};
  {kind} Shape shape{{{", ".join(values)}}};
  const Sizes sizes{{{", ".join(SIZE_NAMES)}}};"""


def find_widths(out_channels: int, lanes: int, vectors: int) -> tuple[int, ...]:
    """Widths of the tiles or panels that so many output channels are cut into, in vectors.

    >>> find_widths(64, 16, 4), find_widths(40, 8, 2), find_widths(8, 16, 4)
    ((4,), (1, 2), (1,))

    Args:
        out_channels: Of one group.
        lanes: Values in a vector.
        vectors: Of a whole one.
    """
    full, rest = divmod(out_channels, lanes * vectors)
    return tuple(sorted({*([-(-rest // lanes)] if rest else []), *([vectors] if full else [])}))


def emit_dispatch(
    size: str, widths: Iterable[int], call: str, *, unit: str = "", indent: int = 0
) -> str:
    """Call a function with the width that a size fits into, as a constant: only those widths are compiled.

    >>> print(emit_dispatch("left", (1, 8), "run"))
    if (left <= 1) run(std::integral_constant<int, 1>{});
    else run(std::integral_constant<int, 8>{});

    Args:
        size: C++ for what has to fit; no less than the one before the last width where it fits none.
        widths: From the least.
        call: What is called.
        unit: C++ behind a width where it is compared; "" by default.
        indent: Spaces before each line but the first (default 0).
    """
    calls = {width: f"{call}(std::integral_constant<int, {width}>{{}});" for width in widths}
    *lower, last = calls
    tests = [f"if ({size} <= {width}{unit}) {calls[width]}" for width in lower]
    return f"\n{' ' * indent}else ".join((*tests, calls[last]))


# The end of a kernel that sums weights in stretches: the first gets the others', in order.
ADD_STRETCHES = """\
  // The sums of the stretches, in order.
  for (int64_t stretch = 1; stretch < stretches; ++stretch) {
    for (int64_t each = 0; each < packed_values; ++each) weights[each] += weights[stretch * packed_values + each];
  }
"""
