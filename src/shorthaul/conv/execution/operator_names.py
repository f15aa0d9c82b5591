"""The operators of convolution and their arguments by name, for the rules that an operator is defined with.

`operators` enters each of them once it is defined.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple


class Geometry(NamedTuple):
    """What an operator takes after its tensors, in the order of its schema."""

    stride: Any
    padding: Any  # six numbers: low and high in turn
    dilation: Any
    groups: int
    padding_mode: str
    layout: str
    exact: bool


defined = SimpleNamespace()
