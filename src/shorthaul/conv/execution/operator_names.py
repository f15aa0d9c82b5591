"""The operators of convolution by name, for the rules that an operator is defined with and that call operators.

`operators` enters each of them once it is defined.
"""

from __future__ import annotations

from types import SimpleNamespace

defined = SimpleNamespace()
