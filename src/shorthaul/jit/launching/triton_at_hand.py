"""Whether Triton can run kernels here: the package, and what it compiles its launchers with."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

from shorthaul.errors import MissingExtraError, TritonUnavailableError

NOT_INSTALLED = "Triton is not installed"
NO_COMPILER = "Triton starts kernels by a C compiler, and there is none (CC, gcc, clang)"
NO_HEADERS = "Triton starts kernels by C code that needs Python.h, which is not installed"


@functools.cache
def why_no_triton() -> str | None:
    """Why Triton cannot run kernels; `None` where it can. Containers without a compiler are usual."""
    if importlib.util.find_spec("triton") is None:
        return NOT_INSTALLED
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return NO_COMPILER
    scheme = sysconfig.get_default_scheme()
    paths = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)
    return None if (Path(paths["include"]) / "Python.h").exists() else NO_HEADERS


def require_triton(purpose: str) -> None:
    """Raise where Triton was asked for by name and cannot run."""
    reason = why_no_triton()
    if reason == NOT_INSTALLED:
        raise MissingExtraError("triton", "gpu", purpose)
    if reason is not None:
        raise TritonUnavailableError(purpose, reason)
