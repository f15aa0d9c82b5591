"""Dtypes as users give them: `torch.float32`, or its name.

>>> parse_dtype("bfloat16"), parse_dtype(torch.int8)
(torch.bfloat16, torch.int8)
"""

from __future__ import annotations

import torch

from shorthaul.errors import RowArgumentError


def parse_dtype(given: torch.dtype | str) -> torch.dtype:
    """The dtype of this name, with or without `torch.` before it; a dtype is itself."""
    found = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise RowArgumentError("dtype", "a torch.dtype or its name, such as 'float32'", repr(given))
    return found
