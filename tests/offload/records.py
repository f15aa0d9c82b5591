"""Records of tensors, for tests of what is done with them."""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.offload.saved.identity import StorageReference, find_key
from shorthaul.offload.saved.record import Holdings, Record, State


def make_record(tensor: torch.Tensor, state: State, *, position: int = 0, **fields: Any) -> Record:
    """A record of all of a tensor."""
    holdings = Holdings(find_key(tensor), StorageReference(tensor.untyped_storage()), state)
    return Record(str(tensor.dtype).removeprefix("torch."), "here", position, holdings, **fields)
