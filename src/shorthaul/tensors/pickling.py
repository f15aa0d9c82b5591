"""Unified tensors in pickles, in checkpoints and on their way to other processes.

| what                              | ordinary pickle, torch.save | to another process         |
| in memory                         | by value                    | by value                   |
| shared                            | by value, shared again      | by descriptor: not copied  |
| on disk                           | by path, opened again       | by path, opened again      |

`torch.load` reads them with `weights_only=True`: what rebuilds them is on torch's safe list.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from shorthaul.tensors.memory.shared_memory import SharedBlock
from shorthaul.tensors.tables.table import RowTable
from shorthaul.tensors.unified_tensor import Traits, UnifiedTensor, borrow_memory, share_copy

Options = tuple[bool, bool, bool, bool]  # propagate, sparse_grad, requires_grad, is_parameter


def reduce_by_value(tensor: UnifiedTensor) -> tuple[Any, ...]:
    """For `pickle` and `torch.save`."""
    if not tensor.has_memory:
        return rebuild_from_table, (tensor.table, _options(tensor))
    return rebuild_from_memory, (borrow_memory(tensor), tensor.kind == "shared", _options(tensor))


def reduce_for_process(tensor: UnifiedTensor) -> tuple[Any, ...]:
    """For `multiprocessing`: shared memory travels as its descriptor."""
    block = tensor._block if tensor.has_memory else None
    if block is None:
        return reduce_by_value(tensor)
    place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return rebuild_from_block, (block, tensor.dtype, *place, _options(tensor))


def rebuild_from_memory(plain: torch.Tensor, shared: bool, options: Options) -> UnifiedTensor:
    """A unified tensor of values that were pickled."""
    traits = Traits(options[0], options[1])
    made = share_copy(plain, traits) if shared else UnifiedTensor._of_memory(plain, traits)
    return _restored(made, options)


def rebuild_from_table(table: RowTable, options: Options) -> UnifiedTensor:
    """A unified tensor whose table was opened again."""
    return _restored(UnifiedTensor.of_table(table, Traits(options[0], options[1])), options)


def rebuild_from_block(
    block: SharedBlock,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    options: Options,
) -> UnifiedTensor:
    """A unified tensor in memory that another process made."""
    plain = block.tensor(dtype, sizes, strides=strides, offset=offset)
    traits = Traits(options[0], options[1], block=block)
    return _restored(UnifiedTensor._of_memory(plain, traits), options)


def _options(tensor: UnifiedTensor) -> Options:
    is_parameter = bool(getattr(tensor, "_is_param", False))
    return tensor.propagate, tensor.sparse_grad, tensor.requires_grad, is_parameter


def _restored(made: UnifiedTensor, options: Options) -> UnifiedTensor:
    _, _, requires_grad, is_parameter = options
    made.requires_grad_(requires_grad)
    if is_parameter:
        made._is_param = True
    return made


UnifiedTensor.reducers.append(reduce_by_value)
ForkingPickler.register(UnifiedTensor, reduce_for_process)
torch.serialization.add_safe_globals([rebuild_from_memory])
