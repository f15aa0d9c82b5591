"""Make the tensors' device current around a launch: kernels start on the current device."""

from __future__ import annotations

import contextlib

import torch


def computing_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` the current one of its kind in this thread; nothing to do for the CPU.

    >>> with computing_on(torch.device("cpu")):
    ...     pass
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def with_number(device: torch.device | str) -> torch.device:
    """The device with its number: `cuda` is the current one of the thread that asks.

    >>> with_number("cpu")
    device(type='cpu')
    """
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched on `device` now goes into a CUDA graph.

    >>> is_capturing(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
