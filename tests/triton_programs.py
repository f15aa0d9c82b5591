"""Triton without a GPU: kernels interpreted for their numbers, and compiled for their machine code."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROOT = Path(__file__).parents[1]
CUBIN_MAGIC = b"\x7fELF"


def run_interpreted(module: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Run a program under Triton's interpreter; returns what it printed, one JSON object a line.

    A program of its own, because Triton decides at import whether it interprets.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, str(count), str(seed)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def compile_kernel(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    **options: int,
) -> dict[str, Any]:
    """What Triton makes of a kernel for such a GPU, by stage: `ptx`, `cubin`.

    Arguments that are neither constants nor in `types` are 32-bit integers. Pointers are multiples
    of 16, as those of PyTorch are.
    """
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    values = {(names.index(name),): value for name, value in constants.items() if name in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if signature[name].startswith("*")
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, values, aligned),
        target=GPUTarget("cuda", capability, 32),
        # Said, because Triton warns that its default will change.
        options={"enable_fp_fusion": True, **options},
    )
    return dict(compiled.asm)
