"""The vector registers that a kernel is written for.

>>> AVX2.lanes(4), AVX2.lanes(8), AVX2.fits_tile(6, 2), AVX2.fits_tile(6, 3)
(8, 4, True, False)
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from shorthaul.jit.toolchain import read_processor


@dataclass(frozen=True)
class VectorMachine:
    """Width and number of the vector registers, which decide the register tile."""

    name: str
    vector_bytes: int
    registers: int
    multiplies_pairs: bool = (
        False  # of bfloat16 values: two products and their sum in one instruction
    )

    def lanes(self, value_bytes: int) -> int:
        """Values in one register."""
        return self.vector_bytes // value_bytes

    def halved(self) -> VectorMachine:
        """The same registers used by half: AVX-512 has all 32 of them for its 256-bit instructions, too."""
        return replace(self, vector_bytes=self.vector_bytes // 2)

    def fits_tile(self, rows: int, vectors: int) -> bool:
        """Whether a tile of sums, its smaller side and one streamed value stay in registers."""
        return rows * vectors + min(rows, vectors) + 1 <= self.registers

    def tiles(self) -> tuple[tuple[int, int], ...]:
        """(rows, vectors) of the tiles worth trying, the best on this machine first.

        A tile needs 2 FMA units times their latency of 4 sums in flight. With 16 registers two
        vectors wide is first: it measured fastest on AVX2 (6x16 against 4x24 and 3x32), though wider
        ones load less. With 32 it is four: 6x64 on AVX-512 needs few addresses, and was fastest on ten
        of the papers' twelve layers (14x32, 9x48).
        """
        return _find_tiles(self)


@functools.cache
def _find_tiles(machine: VectorMachine) -> tuple[tuple[int, int], ...]:
    first = (2, 3, 4, 1) if machine.registers <= 16 else (4, 2, 3, 1)
    fitting = [
        (rows, vectors)
        for vectors in (1, 2, 3, 4)
        for rows in [max(r for r in range(1, 17) if machine.fits_tile(r, vectors))]
        if rows * vectors >= 8
    ]
    return tuple(sorted(fitting, key=lambda tile: first.index(tile[1])))


SSE = VectorMachine("sse", 16, 16)
AVX2 = VectorMachine("avx2", 32, 16)
AVX512 = VectorMachine("avx512", 64, 32)
AVX512_PAIRS = VectorMachine("avx512", 64, 32, multiplies_pairs=True)
NEON = VectorMachine("neon", 16, 32)


def choose_machine(architecture: str, features: Iterable[str]) -> VectorMachine:
    """The widest registers of a processor, from what the system says about it.

    >>> choose_machine("x86_64", ("avx2", "fma")).name, choose_machine("x86_64", ("avx2",)).name
    ('avx2', 'sse')
    """
    present = set(features)
    if architecture in ("aarch64", "arm64"):
        return NEON
    if "avx512f" in present:
        return AVX512_PAIRS if "avx512_bf16" in present else AVX512
    return AVX2 if {"avx2", "fma"} <= present else SSE


@functools.cache
def this_machine() -> VectorMachine:
    """The machine that `-march=native` compiles for here."""
    return choose_machine(platform.machine(), read_processor().features)


@functools.cache
def second_level_cache_bytes() -> int:
    """Size of one core's second-level cache; 512 KiB where the system does not say."""
    return read_cache_bytes(Path("/sys/devices/system/cpu/cpu0/cache/index2/size"))


def read_cache_bytes(path: Path) -> int:
    """The size that the system wrote to `path`, as `512K`; 512 KiB where there is none."""
    try:
        return int(path.read_text().strip().removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 512 * 1024
