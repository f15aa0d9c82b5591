"""Whether anybody looks on while a convolution is called, and whether its tensors are ordinary ones.

Then the dispatcher has nothing to do, and what it takes (some 20 us through Python) is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_is_profiling: Any = torch._C._autograd._profiler_enabled


def is_transformed() -> bool:
    """Whether something traces, transforms or records what is called: tensors may have no values then."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def is_watched() -> bool:
    """Whether something traces, transforms, records or profiles what is called."""
    return is_transformed() or _is_profiling()


def are_ordinary(*tensors: Tensor | None) -> bool:
    """Whether the tensors are PyTorch's own, and their values what lies in a CPU's or CUDA's memory."""
    for each in tensors:
        if each is not None and (
            type(each) not in (Tensor, torch.nn.Parameter)
            or not (each.is_cpu or each.is_cuda)
            or each.is_neg()  # as `x.conj().imag` is: the dispatcher resolves it
        ):
            return False
    return True


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd has to record what is made of the tensors."""
    if torch.is_grad_enabled():
        for each in tensors:
            if each is not None and each.requires_grad:
                return True
    return False


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nobody looks on: no gradient, no tracing, no transform, no tensor subclass."""
    return not is_watched() and are_ordinary(*tensors) and not needs_gradient(*tensors)
