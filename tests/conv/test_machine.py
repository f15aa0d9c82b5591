"""Which vector registers are written for, and which tiles of sums fit them."""

from pathlib import Path

import pytest

from shorthaul.conv.machine import (
    AVX2,
    AVX512,
    NEON,
    SSE,
    VectorMachine,
    choose_machine,
    read_cache_bytes,
    second_level_cache_bytes,
    this_machine,
)

MACHINES = (SSE, AVX2, AVX512, NEON)


@pytest.mark.parametrize(
    ("architecture", "features", "expected"),
    [
        ("x86_64", ("avx", "avx2", "avx512f", "fma", "sse2"), AVX512),
        ("AMD64", ("avx2", "fma"), AVX2),
        ("x86_64", ("fma",), SSE),
        ("x86_64", ("avx2",), SSE),  # without fused multiply-add the kernels would not compile
        ("x86_64", (), SSE),
        ("aarch64", ("asimd", "fp"), NEON),
        ("arm64", (), NEON),  # macOS has no list of features
    ],
)
def test_features_choose_the_machine(
    architecture: str, features: tuple[str, ...], expected: VectorMachine
) -> None:
    assert choose_machine(architecture, features) is expected


def test_this_machine_is_one_of_them_and_the_same_each_time() -> None:
    assert this_machine() in MACHINES
    assert this_machine() is this_machine()


@pytest.mark.parametrize(
    ("machine", "single", "double"), [(SSE, 4, 2), (AVX2, 8, 4), (AVX512, 16, 8), (NEON, 4, 2)]
)
def test_lanes(machine: VectorMachine, single: int, double: int) -> None:
    assert (machine.lanes(4), machine.lanes(8)) == (single, double)


@pytest.mark.parametrize(
    ("machine", "tiles"),
    [
        (AVX2, ((6, 2), (4, 3), (3, 4), (14, 1))),
        (AVX512, ((14, 2), (9, 3), (6, 4), (16, 1))),
    ],
)
def test_tiles_worth_trying_with_the_best_first(machine: VectorMachine, tiles: object) -> None:
    assert machine.tiles() == tiles


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_tiles_fill_the_registers_and_no_more(machine: VectorMachine) -> None:
    for rows, vectors in machine.tiles():
        needed = rows * vectors + min(rows, vectors) + 1
        assert needed <= machine.registers
        assert rows * vectors >= 8  # sums in flight: two units times a latency of four
        assert rows == 16 or not machine.fits_tile(rows + 1, vectors)


@pytest.mark.parametrize(
    ("text", "expected"), [("512K\n", 524_288), ("2048K", 2_097_152), ("unknown", 524_288)]
)
def test_cache_size_as_the_system_writes_it(tmp_path: Path, text: str, expected: int) -> None:
    (tmp_path / "size").write_text(text)
    assert read_cache_bytes(tmp_path / "size") == expected


def test_cache_size_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert read_cache_bytes(tmp_path / "missing") == 512 * 1024
    assert second_level_cache_bytes() >= 64 * 1024
