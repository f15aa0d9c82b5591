"""Which modules are running, read from the call stack: names for people, never an identity."""

from __future__ import annotations

import functools
import sys
from types import FrameType


def find_scope(frame: FrameType | None) -> str:
    """The classes whose `forward` is running, outermost first, such as `GPT.Block.Linear`."""
    names: list[str] = []
    while frame is not None:
        if frame.f_code.co_name == "forward":
            names.append(_class_of(frame))
        frame = frame.f_back
    known = [name for name in reversed(names) if name.isidentifier()]
    return ".".join(known) or "code outside any module"


def _class_of(frame: FrameType) -> str:
    """The class that the running method was written in."""
    if sys.version_info >= (3, 11):
        # Not by `f_locals`: before Python 3.13 that leaves a copy of all local variables with the
        # frame, which keeps activations alive that `forward` has deleted.
        return _class_in(frame.f_code.co_qualname)
    return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else ""


@functools.lru_cache(1024)
def _class_in(qualified_name: str) -> str:
    """The class of a method, from the method's own name such as `nn.Linear.forward`."""
    return ".".join(qualified_name.split(".")[-2:-1])
