"""Which vector registers are written for, and which tiles of sums fit them."""

import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import shorthaul
from shorthaul.conv.methods.depthwise import (
    DepthwiseKernel,
    emit_depthwise_gradient,
    emit_depthwise_kernel,
)
from shorthaul.conv.methods.gradients.weight import emit_grad_weight_kernel
from shorthaul.conv.methods.planar import PlanarKernel, emit_planar_kernel
from shorthaul.conv.methods.sliding import SlidingKernel, emit_sliding_kernel
from shorthaul.conv.methods.sweep import SweepKernel, emit_sweep_kernel
from shorthaul.conv.methods.tall import TallKernel, emit_tall_kernel
from shorthaul.conv.methods.window_kernel import WindowKernel, emit_window_kernel
from shorthaul.conv.methods.winograd import WinogradKernel, emit_winograd_kernel
from shorthaul.conv.problem.geometry import KernelShape
from shorthaul.conv.problem.machine import (
    AVX2,
    AVX512,
    AVX512_PAIRS,
    NEON,
    SSE,
    VectorMachine,
    choose_machine,
    read_cache_bytes,
    second_level_cache_bytes,
    this_machine,
)
from shorthaul.jit import CppSource

MACHINES = (SSE, AVX2, AVX512, AVX512_PAIRS, NEON)
HEADERS = Path(shorthaul.__file__).parents[1]


@pytest.mark.parametrize(
    ("architecture", "features", "expected"),
    [
        ("x86_64", ("avx", "avx2", "avx512f", "fma", "sse2"), AVX512),
        ("x86_64", ("avx2", "avx512_bf16", "avx512f", "fma"), AVX512_PAIRS),
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
        (AVX512, ((6, 4), (14, 2), (9, 3), (16, 1))),
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


def kernels_for(machine: VectorMachine) -> list[CppSource]:
    """One kernel of every emitter, written for `machine`."""
    rows, vectors = machine.tiles()[0]
    window = WindowKernel(torch.float32, True, "gelu", machine, rows, vectors)
    depthwise = DepthwiseKernel(torch.bfloat16, None, machine, 6, 2)
    paired = replace(window, dtype=torch.bfloat16, has_pairs=True)
    shape = KernelShape(8, machine.lanes(4), 4, (1, 3, 3), (1, 1, 1), (1, 1, 1))
    sweep = SweepKernel(torch.float32, True, None, machine, 4, shape)
    return [
        *([emit_window_kernel(paired)] if machine.multiplies_pairs else []),
        emit_window_kernel(window),
        emit_window_kernel(replace(window, dtype=torch.float16, channels_last=False)),
        emit_grad_weight_kernel(replace(window, activation=None, dtype=torch.float64)),
        emit_winograd_kernel(WinogradKernel(window, 4)),
        emit_planar_kernel(PlanarKernel(torch.float32, False, None, machine, 4, 3)),
        emit_depthwise_kernel(depthwise),
        emit_depthwise_gradient(depthwise),
        emit_sliding_kernel(SlidingKernel(torch.float32, True, None, machine, 4, 3, 3, 1)),
        emit_sliding_kernel(SlidingKernel(torch.float32, False, None, machine, 8, 1, 3, 2)),
        emit_tall_kernel(TallKernel(torch.float32, True, "relu", machine, 8, 3)),
        emit_tall_kernel(TallKernel(torch.bfloat16, False, None, machine, 4, 3)),
        emit_sweep_kernel(sweep),
        emit_sweep_kernel(replace(sweep, channels_last=False, activation="gelu")),
    ]


@pytest.mark.parametrize(
    ("machine", "compiler", "flags"),
    [
        (AVX512_PAIRS, "g++", ("-mavx512f", "-mavx512bw", "-mavx512bf16", "-mfma", "-mf16c")),
        pytest.param(SSE, "g++", ("-march=x86-64",), marks=pytest.mark.slow),
        pytest.param(NEON, "aarch64-linux-gnu-g++", ("-march=armv8.2-a",), marks=pytest.mark.slow),
    ],
    ids=lambda each: each.name if isinstance(each, VectorMachine) else "",
)
def test_every_kernel_compiles_for_other_machines(
    machine: VectorMachine, compiler: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    if machine is not NEON and platform.machine() != "x86_64":
        pytest.skip("g++ compiles for another architecture here")
    for number, source in enumerate(kernels_for(machine)):
        text, object_file = tmp_path / f"{number}.cpp", tmp_path / f"{number}.o"
        text.write_text(source.complete_text())
        command = (
            compiler, "-std=c++17", "-O0", *flags, "-Wall", "-Wextra", f"-I{HEADERS}", "-c",
            str(text), "-o", str(object_file),
        )  # fmt: skip
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        assert compiled.returncode == 0, f"{source.name} for {machine.name}: {compiled.stderr}"
        if machine is AVX512_PAIRS and shutil.which("objdump"):
            listing = subprocess.run(
                ["objdump", "-d", str(object_file)], capture_output=True, text=True, check=True
            )
            assert "zmm" in listing.stdout
