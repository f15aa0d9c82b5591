"""The parameters of generated functions, declared once: their text, their contract and their calls follow.

>>> import torch
>>> declared = (Parameter("limits", Kind.INDEX), Parameter("tiles", Kind.NUMBER), Parameter("out", Kind.MADE))
>>> write_parameters(declared)
'const Index* limits, int64_t tiles, Stored* out, int64_t threads'
>>> make_function("f", declared, torch.float32, torch.int64).prototype()
'void f(const int64_t* limits, int64_t tiles, float* out, int64_t threads)'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch

from shorthaul.jit import Function, NumberArgument, TensorArgument, ThreadsArgument
from shorthaul.relational.backends.run import WIDE


class Kind(Enum):
    """What a parameter is, as the text's preamble names its type."""

    INDEX = "const Index*"
    STORED = "const Stored*"
    MADE = "Stored*"
    SUM = "real*"  # written before it is rounded
    NUMBER = "int64_t"


@dataclass(frozen=True)
class Parameter:
    """One parameter; a call finds its value by its name."""

    name: str
    kind: Kind
    is_optional: bool = False  # a null pointer where the call has `None`


def write_parameters(parameters: Iterable[Parameter]) -> str:
    """The parameter list of the definition."""
    declared = [f"{each.kind.value} {each.name}" for each in parameters]
    return ", ".join([*declared, "int64_t threads"])


def make_function(
    name: str, parameters: Iterable[Parameter], dtype: torch.dtype, index_dtype: torch.dtype
) -> Function:
    """What a caller of the function must pass."""
    dtypes = {Kind.INDEX: index_dtype, Kind.SUM: WIDE.get(dtype, dtype)}
    arguments: list[TensorArgument | NumberArgument] = []
    for each in parameters:
        if each.kind is Kind.NUMBER:
            arguments.append(NumberArgument(each.name, "int64"))
            continue
        is_written = each.kind in (Kind.MADE, Kind.SUM)
        arguments.append(
            TensorArgument(
                each.name,
                dtypes.get(each.kind, dtype),
                is_written=is_written,
                is_optional=each.is_optional,
            )
        )
    return Function(name, (*arguments, ThreadsArgument()))
