"""The measuring kernels do the work that their figures count."""

import platform
import shutil
import subprocess

import pytest
import torch

from shorthaul.jit import load_kernel, peaks
from shorthaul.jit.peaks import (
    CHAINS,
    choose_steps,
    choose_stream_bytes,
    emit_multiply_add,
    emit_multiply_add_source,
    emit_stream_source,
    measure_memory,
    measure_multiply_adds,
)

GOLDEN = """\
// 2 independent chains of multiply-adds on full vectors: as many floating operations as the
// processor can start. Every chain tends to 1, far from denormal numbers.
int64_t multiply_add_2(float* sums, int64_t steps, int64_t threads) {
  int64_t team = 1;
  shorthaul::on_each_thread(threads, [&](int64_t thread, int64_t size) {
    const Vector factor = Vector{} + 0.75f, term = Vector{} + 0.25f;
    const Vector first = Vector{} + sums[thread];  // read: a known chain at 1 would be left out
    Vector chain_0 = first + 0.0f;
    Vector chain_1 = first + 1.0f;
    for (int64_t step = 0; step < steps; ++step) {
      chain_0 = chain_0 * factor + term;
      chain_1 = chain_1 * factor + term;
    }
    chain_0 += chain_1;
    sums[thread] = chain_0[0];  // used, so the compiler must compute it
    if (thread == 0) team = size;
  });
  return team * steps * 2 * LANES * 2;  // a multiplication and an addition
}"""


def test_the_generated_text() -> None:
    assert emit_multiply_add(chains=2) == GOLDEN


@pytest.mark.parametrize("chains", CHAINS)
def test_every_chain_is_computed_on_every_thread(chains: int) -> None:
    kernel = load_kernel(emit_multiply_add_source())
    function = kernel.functions[f"multiply_add_{chains}"]
    sums = torch.zeros(torch.get_num_threads())
    operations = function(sums, 200)
    torch.testing.assert_close(sums, torch.full_like(sums, chains))  # each chain has come to 1
    lanes = operations // (len(sums) * 200 * chains * 2)
    assert lanes in (4, 8, 16)
    assert operations == len(sums) * 200 * chains * 2 * lanes
    start = torch.zeros(1)
    function(start, 0)
    assert start.item() == sum(range(chains))


@pytest.mark.skipif(
    shutil.which("objdump") is None or platform.machine() != "x86_64",
    reason="reads x86 instructions",
)
def test_the_compiler_leaves_no_chain_out() -> None:
    # A chain that started at 1, where 0.75 x + 0.25 stays, was known to the compiler and not computed:
    # the figure counted twelve chains where eleven ran.
    kernel = load_kernel(emit_multiply_add_source())
    command = [
        "objdump",
        "--disassemble",
        "--no-show-raw-insn",
        str(kernel.entry.directory / "kernel.so"),
    ]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = dict.fromkeys(CHAINS, 0)
    name = ""
    for line in shown.splitlines():
        if line.endswith(">:"):
            name = line
        for chains in CHAINS:
            found[chains] += f"multiply_add_{chains}" in name and "fmadd" in line
    for chains in CHAINS:  # the loop, once or more often
        assert found[chains] > 0
        assert found[chains] % chains == 0


@pytest.mark.parametrize("n", [1, 511, 512, 5000])
@pytest.mark.parametrize("threads", [1, 2])
def test_streams_copy_and_read_every_word(n: int, threads: int) -> None:
    kernel = load_kernel(emit_stream_source())
    source = torch.arange(n) - 7
    target = torch.zeros_like(source)
    kernel.copy_stream(source, target, threads)
    assert torch.equal(source, target)
    assert kernel.read_stream(source, threads) == int(source.sum())


@pytest.mark.parametrize(
    ("cache_bytes", "available_bytes", "stream_bytes"),
    [
        (32 * 2**20, 2**34, 256 * 2**20),
        (384 * 2**20, 2**36, 1536 * 2**20),
        (32 * 2**20, 2**30, 128 * 2**20),  # little memory: both streams in a quarter of it
        (0, 0, 4096),
    ],
)
def test_streams_go_beyond_the_caches(cache_bytes, available_bytes, stream_bytes) -> None:
    assert choose_stream_bytes(cache_bytes, available_bytes) == stream_bytes


def test_steps_double_until_a_run_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def work(steps: int) -> None:
        nonlocal clock
        clock += steps * 1e-7

    monkeypatch.setattr(peaks.time, "perf_counter", lambda: clock)
    assert choose_steps(work) == 1 << 17  # 13.1 ms; half of it would be below 10 ms


def test_figures_are_rates_on_torchs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "RUN_SECONDS", 1e-5)
    arithmetic = measure_multiply_adds()
    assert arithmetic.threads == torch.get_num_threads()
    assert min(arithmetic.one_thread, arithmetic.all_threads) > 0
    memory = measure_memory(stream_bytes=2**20)
    assert memory.stream_bytes == 2**20
    for rates in (memory.copy, memory.read):
        assert min(rates.one_thread, rates.all_threads) > 0
