"""What a kernel function accepts: checked fast when it holds, explained in full when it does not.

The checks of one function are known when its kernel is loaded, so they are written out as straight
Python once, the way the kernel itself is. Interpreting the argument list on every call took 5.8
microseconds; docs/jit.md has what a call costs now.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from shorthaul.errors import KernelArgumentError
from shorthaul.jit.held_values import describe_without_memory
from shorthaul.jit.source import (
    Argument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)

# What fits the C type; ctypes itself would cut off the rest without a word.
_RANGES = {"int64": "-(2**63) <= {} < 2**63", "address": "0 <= {} < 2**64"}

# The address of a tensor that is there, but has neither values nor memory.
_NOWHERE = 64


def emit_caller(function: Function) -> str:
    """Python text of `caller`: one condition over all contracts, then the call.

    Emits, for `void scale(const float* x, double factor, float* out, int64_t n)`::

        def caller(*_values):
            try:
                (x, factor, out, ) = _values
                _x_pointer = x.data_ptr()
                _x_shape = x.shape
                n = _x_shape[0]
                factor = _real(factor)
                _out_pointer = out.data_ptr()
                _out_shape = out.shape
                _holds = (
                    x.dtype is _torch.float32 and x.is_cpu and (_x_pointer or not x.numel())
                    and not x.is_neg() and x.is_contiguous() and len(_x_shape) == 1
                    and out.dtype is _torch.float32 and out.is_cpu and (_out_pointer or not out.numel())
                    and not out.is_neg()
                    and out.is_contiguous() and len(_out_shape) == 1 and _out_shape[0] == n
                )
            except Exception as _error:
                _refuse(_values, _error)
            if not _holds:
                _refuse(_values)
            if _listening:
                _record_launch()
            return _compiled(_x_pointer, factor, _out_pointer, n)

    Names that begin with an underscore are the caller's own; no argument may have one.
    """
    taken = "".join(f"{each.name}, " for each in passed_arguments(function))
    bindings: list[str] = []
    conditions: list[str] = []
    bound: set[str] = set()
    for each in function.arguments:
        if isinstance(each, TensorArgument):
            conditions.extend(_tensor_conditions(each, bound))
            bindings.extend(_tensor_bindings(each, bound))
        elif isinstance(each, NumberArgument):
            conditions.extend(_number_conditions(each))
            bindings.append(f"{each.name} = {_number(each)}")
    passed = ", ".join(map(_passed, function.arguments))
    return "\n".join(
        (
            "def caller(*_values):",
            "    try:",
            f"        ({taken}) = _values",
            *(f"        {line}" for line in bindings),
            "        _holds = (",
            *(
                f"            {'and ' if position else ''}{line}"
                for position, line in enumerate(conditions or ["True"])
            ),
            "        )",
            "    except Exception as _error:",
            "        _refuse(_values, _error)",
            "    if not _holds:",
            "        _refuse(_values)",
            "    if _listening:",
            "        _record_launch()",
            f"    return _compiled({passed})",
            "",
        )
    )


def passed_arguments(function: Function) -> tuple[TensorArgument | NumberArgument, ...]:
    """The arguments that a caller passes: dimensions and threads are filled in."""
    return tuple(
        each for each in function.arguments if isinstance(each, TensorArgument | NumberArgument)
    )


def real(value: Any) -> float:
    """`value` as a `float`, from any number; unlike `float`, not from text."""
    return math.ldexp(value, 0)


def refuse(
    kernel: str, function: Function, values: Sequence[Any], error: Exception | None = None
) -> NoReturn:
    """Raise the `KernelArgumentError` that says which value breaks which contract."""
    expected = passed_arguments(function)
    if len(values) != len(expected):
        names = ", ".join(each.name for each in expected)
        raise KernelArgumentError(
            kernel, "*", f"{len(expected)} values ({names})", f"{len(values)}"
        ) from None
    sizes: dict[str, int] = {}
    for argument, value in zip(expected, values, strict=True):
        broken = (
            _broken_tensor(argument, value, sizes)
            if isinstance(argument, TensorArgument)
            else _broken_number(argument, value)
        )
        if broken is not None:
            raise KernelArgumentError(kernel, argument.name, *broken) from None
    # Every value is as it should be when it is looked at again: something changed meanwhile.
    raise KernelArgumentError(kernel, "*", "values that stay as they are", f"{error!r}") from error


def _tensor_bindings(tensor: TensorArgument, bound: set[str]) -> list[str]:
    name = tensor.name
    absent = f"None if {name} is None else " if tensor.is_optional else ""
    # A tensor without values may have no address; a kernel must not take it for an absent one.
    nowhere = f" or ({name}.numel() == 0 and {_NOWHERE})" if tensor.is_optional else ""
    lines = [f"_{name}_pointer = {absent}{name}.data_ptr(){nowhere}"]
    if tensor.shape is not None:
        lines.append(f"_{name}_shape = {absent}{name}.shape")
    if not tensor.is_optional:
        for position, size in enumerate(tensor.shape or ()):
            if isinstance(size, str) and size not in bound:
                lines.append(f"{size} = _{name}_shape[{position}]")
                bound.add(size)
    return lines


def _tensor_conditions(tensor: TensorArgument, bound: set[str]) -> list[str]:
    """Lines of the condition; a name in `bound` has its size from an earlier tensor."""
    name = tensor.name
    memory = [
        f"{name}.dtype is _{tensor.dtype}",
        f"{name}.is_cpu",
        f"(_{name}_pointer or not {name}.numel())",
        f"not {name}.is_neg()",
    ]
    layout = [f"{name}.is_contiguous()"] if tensor.is_contiguous else []
    if tensor.shape is not None:
        layout.append(f"len(_{name}_shape) == {len(tensor.shape)}")
        known = set(bound)
        for position, size in enumerate(tensor.shape):
            if size is None:
                continue
            if isinstance(size, int) or size in known or tensor.is_optional:
                layout.append(f"_{name}_shape[{position}] == {size}")
            else:
                known.add(size)  # this is where the name gets its size
    lines = [" and ".join(each) for each in (memory, layout) if each]
    if tensor.is_optional:
        return [f"({name} is None or ({' and '.join(lines)}))"]
    return lines


def _number_conditions(argument: NumberArgument) -> list[str]:
    return [_RANGES[argument.type].format(argument.name)] if argument.type in _RANGES else []


def _number(argument: NumberArgument) -> str:
    return f"_{'whole' if argument.type in _RANGES else 'real'}({argument.name})"


def _passed(argument: Argument) -> str:
    if isinstance(argument, ThreadsArgument):
        return "_kernel_threads()"
    return f"_{argument.name}_pointer" if isinstance(argument, TensorArgument) else argument.name


def _broken_number(argument: NumberArgument, value: Any) -> tuple[str, str] | None:
    if argument.type not in _RANGES:
        try:
            real(value)
        except Exception:
            return "a number", repr(value)
        return None
    try:
        number = operator.index(value)
    except Exception:
        return f"a whole number ({argument.type})", repr(value)
    smallest, beyond = (0, 2**64) if argument.type == "address" else (-(2**63), 2**63)
    is_in_range = smallest <= number < beyond
    return None if is_in_range else (f"a whole number that fits {argument.type}", repr(value))


def _broken_tensor(
    argument: TensorArgument, value: Any, sizes: dict[str, int]
) -> tuple[str, str] | None:
    if value is None and argument.is_optional:
        return None
    if not isinstance(value, torch.Tensor):
        return "a tensor", type(value).__name__
    if value.dtype is not argument.dtype:
        return f"of {argument.dtype}", str(value.dtype)
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
        nested = "nested " if value.is_nested else ""
        return "a dense CPU tensor", f"{nested}{value.layout} on {value.device}"
    if value.is_neg():
        return "memory that holds the values themselves", "a negated view"
    if not _has_memory(value):
        return "a tensor with memory of its own", describe_without_memory(value)
    if argument.is_contiguous and not value.is_contiguous():
        return "contiguous", f"shape {tuple(value.shape)}, strides {value.stride()}"
    known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    if argument.shape is not None and not _binds(argument.shape, value.shape, sizes):
        wanted = ", ".join("any" if size is None else str(size) for size in argument.shape)
        return f"of shape ({wanted})" + (f" with {known}" if known else ""), f"{tuple(value.shape)}"
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for fake tensors, wrappers around others, and `torch.func`'s tracked ones."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def _binds(
    expected: tuple[int | str | None, ...], shape: torch.Size, sizes: dict[str, int]
) -> bool:
    """Whether `shape` is as expected, binding names that are met for the first time."""
    return len(shape) == len(expected) and all(
        sizes.setdefault(want, have) == have if isinstance(want, str) else want in (None, have)
        for want, have in zip(expected, shape, strict=True)
    )
