"""Builds and loads the pretended devices; nothing here may import PyTorch before they are loaded."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("device.cpp")


def start() -> ctypes.CDLL:
    """Pretend; once, before `import torch`."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    library = ctypes.CDLL(str(_build()), mode=ctypes.RTLD_GLOBAL)
    from tests.pretended_cuda import torch_cuda

    torch_cuda.pretend(library)
    return library


def _build() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    text = _SOURCE.read_bytes() + importlib.metadata.version("torch").encode() + str(torch).encode()
    made = (
        Path(tempfile.gettempdir()) / f"pretended_cuda_{hashlib.sha256(text).hexdigest()[:16]}.so"
    )
    if not made.exists():
        unfinished = made.with_suffix(f".{os.getpid()}")
        includes = [torch / "include", torch / "include/torch/csrc/api/include"]
        subprocess.run(
            [
                *("g++", "-std=c++20", "-O0", "-shared", "-fPIC"),
                *(f"-I{each}" for each in includes),
                *(str(_SOURCE), "-o", str(unfinished)),
                *(f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-ltorch", "-ltorch_cpu", "-lc10"),
            ],
            check=True,
        )
        unfinished.rename(made)
    return made
