"""The machine code of shipped Triton kernels, without a GPU: what real launches would compile, and what is in it.

The launching code itself is called, on tensors without content or on the host's. A launch is not carried
out: Triton specializes the kernel as for this launch (divisibility by 16, ones, types) and compiles it for
the architecture asked for; the tools in its wheel take the result apart.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

THREADS_PER_WARP = 32


@dataclass(frozen=True)
class Architecture:
    """What one streaming multiprocessor has, by NVIDIA's tables of compute capabilities."""

    capability: int
    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65_536


ARCHITECTURES = (
    Architecture(80, warps=64, blocks=32, shared_bytes=164 * 1024),
    Architecture(89, warps=48, blocks=24, shared_bytes=100 * 1024),
    Architecture(90, warps=64, blocks=32, shared_bytes=228 * 1024),
)


@dataclass(frozen=True)
class MachineCode:
    """What one compiled kernel takes and has."""

    kernel: str
    capability: int
    warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    spills: int  # instructions that move registers to local memory or back
    tensor_core: int  # instructions of the tensor cores
    wide_loads: int  # of 128 bits
    loads: int

    @property
    def occupancy(self) -> float:
        """The share of the multiprocessor's warps that can run at once."""
        found = next(each for each in ARCHITECTURES if each.capability == self.capability)
        of_warp = -(-self.registers * THREADS_PER_WARP // 256) * 256  # given out in pieces of 256
        limits = [
            found.blocks,
            found.warps // self.warps,
            found.registers // (of_warp * self.warps),
            found.shared_bytes // (self.shared_bytes + 1024),  # 1 KiB is the system's
        ]
        return min(limits) * self.warps / found.warps


class _NoDevice:
    """A driver of a GPU that is not there: Triton asks it what to compile for."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, THREADS_PER_WARP)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0


@contextmanager
def compiling_for(capability: int) -> Iterator[list[Any]]:
    """Collect what is compiled for launches inside, none of which is carried out."""
    compiled: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # noqa: ARG001
        made = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.append(made)
        return made

    active = driver._active
    driver.set_active(_NoDevice(capability))
    JITFunction.run = compile_only
    try:
        with warnings.catch_warnings():
            # Triton will change its default; what is compiled is what it does now.
            warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
            yield compiled
    finally:
        JITFunction.run = run
        driver._active = active


def read_machine_code(compiled: Any, capability: int) -> MachineCode:
    """Take a compiled kernel apart."""
    with tempfile.TemporaryDirectory() as directory:
        cubin = Path(directory) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        used = _run("cuobjdump", "-res-usage", str(cubin))
        text = _run("nvdisasm", "-c", "-ndf", str(cubin))
    sizes = dict(re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", used))
    return MachineCode(
        kernel=compiled.metadata.name,
        capability=capability,
        warps=compiled.metadata.num_warps,
        registers=int(sizes["REG"]),
        stack_bytes=int(sizes["STACK"]) + int(sizes["LOCAL"]),
        shared_bytes=int(compiled.metadata.shared),
        spills=len(re.findall(r"\b(?:LDL|STL)\b", text)),
        tensor_core=len(re.findall(r"\b(?:HMMA|HGMMA|IMMA|QGMMA|DMMA)\b", text)),
        wide_loads=len(re.findall(r"\b(?:LDG|LDGSTS)\.E\S*\.128\b", text)),
        loads=len(re.findall(r"\b(?:LDG|LDGSTS)\.E", text)),
    )


def compile_launches(launch: Callable[[], object], capability: int) -> list[MachineCode]:
    """The machine code of every kernel that `launch` would start."""
    with compiling_for(capability) as compiled:
        launch()
    return [read_machine_code(each, capability) for each in compiled]


def _run(tool: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / tool
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
