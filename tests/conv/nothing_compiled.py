"""As in a process that has compiled nothing yet, with a compiler that waits at a gate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shorthaul.conv.execution import plan
from shorthaul.conv.execution.fingerprint import hash_function
from shorthaul.conv.execution.packing import panel_kernel
from shorthaul.conv.methods.gradients.bias import grad_bias_kernel
from shorthaul.jit.compiling.loading import wait_for_compilers
from shorthaul.settings import settings
from tests.jit.gated_compiler import write_gated_compiler


def forget_kernels() -> None:
    """What this process remembers of kernels, beside the loaded ones."""
    plan.forget_plans()
    for each in (plan._load, hash_function, panel_kernel, grad_bias_kernel):
        each.cache_clear()


@contextlib.contextmanager
def nothing_compiled(directory: Path) -> Iterator[Path]:
    """An empty cache, and kernels that are compiled in the background behind `directory`'s gate."""
    forget_kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(write_gated_compiler(directory)))
        with settings.override(cache_directory=directory / "cache", compiling="background"):
            try:
                yield directory
            finally:
                wait_for_compilers()
                forget_kernels()
