"""Functions that `torch.compile` leaves alone: it breaks the graph there, and runs them as they are.

`torch.compiler.disable` does the same with a wrapper, which would cost every call in ordinary code
more than a small gather takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame  # its compiled part: the whole takes a second to import

Function = TypeVar("Function", bound=Callable[..., Any])

REASON = "rows, files and graphs are read and written outside of compiled graphs"


def outside_graphs(function: Function) -> Function:
    """Have compilers neither trace nor inline `function`, nor what it calls."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    frames: Any = eval_frame
    skip = getattr(frames, "_FrameAction", None)
    if skip is not None:  # without it, frames are traced for nothing: slower, and no less right
        strategy = frames._FrameExecStrategy(skip.SKIP, skip.SKIP)
        frames.set_code_exec_strategy(marked.__code__, strategy)
    return function
