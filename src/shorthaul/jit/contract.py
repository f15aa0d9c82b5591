"""What a kernel function accepts: checked fast when it holds, explained in full when it does not.

The checks of one function are known when its kernel is loaded, so they are written out as straight
Python once, the way the kernel itself is. Interpreting the argument list on every call took 5.8
microseconds; written out it takes about 2.5, of which the call through ctypes is 1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from shorthaul.errors import KernelArgumentError
from shorthaul.jit.source import (
    Argument,
    Function,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
)


def emit_caller(function: Function) -> str:
    """Python text of `caller`: one condition over all contracts, then the call.

    Emits, for `void scale(const float* x, double factor, float* out, int64_t n)`::

        def caller(*values):
            try:
                (x, factor, out, ) = values
                x_shape = x.shape
                n = x_shape[0]
                out_shape = out.shape
                holds = (
                    x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()
                    and len(x_shape) == 1 and x_shape[0] == n
                    and out.dtype is torch.float32 and out.is_cpu and out.is_contiguous()
                    and len(out_shape) == 1 and out_shape[0] == n
                )
                arguments = (x.data_ptr(), float(factor), out.data_ptr(), n, )
            except Exception:
                holds = False
            if not holds:
                refuse(values)
            record_launch()
            return compiled(*arguments)
    """
    taken = "".join(f"{each.name}, " for each in passed_arguments(function))
    bindings: list[str] = []
    conditions: list[str] = []
    bound: set[str] = set()
    for each in function.arguments:
        if isinstance(each, TensorArgument):
            bindings.extend(_bindings(each, bound))
            conditions.append(_condition(each))
    return "\n".join(
        (
            "def caller(*values):",
            "    try:",
            f"        ({taken}) = values",
            *(f"        {line}" for line in bindings),
            f"        holds = {' and '.join(conditions) or 'True'}",
            f"        arguments = ({''.join(f'{_passed(each)}, ' for each in function.arguments)})",
            "    except Exception:",
            "        holds = False",
            "    if not holds:",
            "        refuse(values)",
            "    record_launch()",
            "    return compiled(*arguments)",
            "",
        )
    )


def passed_arguments(function: Function) -> tuple[TensorArgument | NumberArgument, ...]:
    """The arguments that a caller passes: dimensions and threads are filled in."""
    return tuple(
        each for each in function.arguments if isinstance(each, TensorArgument | NumberArgument)
    )


def refuse(kernel: str, function: Function, values: Sequence[Any]) -> NoReturn:
    """Raise the `KernelArgumentError` that says which value breaks which contract."""
    expected = passed_arguments(function)
    if len(values) != len(expected):
        names = ", ".join(each.name for each in expected)
        raise KernelArgumentError(
            kernel, "*", f"{len(expected)} values ({names})", f"{len(values)}"
        )
    sizes: dict[str, int] = {}
    for argument, value in zip(expected, values, strict=True):
        broken = (
            _broken_tensor(argument, value, sizes)
            if isinstance(argument, TensorArgument)
            else _broken_number(argument, value)
        )
        if broken is not None:
            raise KernelArgumentError(kernel, argument.name, *broken)
    raise KernelArgumentError(
        kernel, "*", "tensors with memory of their own", "fake or wrapped ones"
    )


def _bindings(tensor: TensorArgument, bound: set[str]) -> list[str]:
    if tensor.shape is None:
        return []
    name = tensor.name
    if tensor.is_optional:
        return [f"{name}_shape = None if {name} is None else {name}.shape"]
    lines = [f"{name}_shape = {name}.shape"]
    for position, size in enumerate(tensor.shape):
        if isinstance(size, str) and size not in bound:
            lines.append(f"{size} = {name}_shape[{position}]")
            bound.add(size)
    return lines


def _condition(tensor: TensorArgument) -> str:
    name = tensor.name
    parts = [f"{name}.dtype is {tensor.dtype}", f"{name}.is_cpu"]
    if tensor.is_contiguous:
        parts.append(f"{name}.is_contiguous()")
    if tensor.shape is not None:
        parts.append(f"len({name}_shape) == {len(tensor.shape)}")
        parts.extend(
            f"{name}_shape[{position}] == {size}"
            for position, size in enumerate(tensor.shape)
            if size is not None
        )
    condition = " and ".join(parts)
    return f"({name} is None or {condition})" if tensor.is_optional else condition


def _passed(argument: Argument) -> str:
    if isinstance(argument, ThreadsArgument):
        return "kernel_threads()"
    if isinstance(argument, NumberArgument):
        return f"float({argument.name})" if "float" in argument.type else f"index({argument.name})"
    if not isinstance(argument, TensorArgument):
        return argument.name
    pointer = f"{argument.name}.data_ptr()"
    return f"None if {argument.name} is None else {pointer}" if argument.is_optional else pointer


def _broken_number(argument: NumberArgument, value: Any) -> tuple[str, str] | None:
    if "float" in argument.type:
        return None if isinstance(value, int | float) else ("a number", repr(value))
    is_whole = isinstance(value, int) or hasattr(value, "__index__")
    return None if is_whole else (f"a whole number ({argument.type})", repr(value))


def _broken_tensor(
    argument: TensorArgument, value: Any, sizes: dict[str, int]
) -> tuple[str, str] | None:
    if value is None and argument.is_optional:
        return None
    if not isinstance(value, torch.Tensor):
        return "a tensor", type(value).__name__
    if value.dtype is not argument.dtype:
        return f"of {argument.dtype}", str(value.dtype)
    if not value.is_cpu or value.layout is not torch.strided:
        return "a dense CPU tensor", f"{value.layout} on {value.device}"
    if argument.is_contiguous and not value.is_contiguous():
        return "contiguous", f"shape {tuple(value.shape)}, strides {value.stride()}"
    if argument.shape is not None and not _binds(argument.shape, value.shape, sizes):
        known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        wanted = ", ".join("any" if size is None else str(size) for size in argument.shape)
        return f"of shape ({wanted})" + (f" with {known}" if known else ""), f"{tuple(value.shape)}"
    return None


def _binds(
    expected: tuple[int | str | None, ...], shape: torch.Size, sizes: dict[str, int]
) -> bool:
    """Whether `shape` is as expected, binding names that are met for the first time."""
    return len(shape) == len(expected) and all(
        sizes.setdefault(want, have) == have if isinstance(want, str) else want in (None, have)
        for want, have in zip(expected, shape, strict=True)
    )
