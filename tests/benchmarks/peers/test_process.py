"""Arms in another process are measured, compared and reported like our own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.measuring.measure import Arm, UnequalError, compare, not_compared, same_bits
from benchmarks.peers.process import ArmProcess, PeerError, PeersMissingError

SCRIPT = """
import mmap, os, sys, time

print("a peer that prints while it is imported")

def make_scale(path, factor):
    import torch
    values = torch.load(path, weights_only=True)
    def run():
        print("and while it runs")
        return values * factor
    return run

def make_touch(mebibytes):
    def run():
        with mmap.mmap(-1, mebibytes * 2**20) as region:
            for page in range(0, len(region), mmap.PAGESIZE):
                region[page] = 1
    return run

def make_death(status):
    def run():
        print("last words", file=sys.stderr, flush=True)
        os._exit(status)
    return run

def fail():
    raise ValueError("no such graph")

ARMS = {
    "scale": make_scale,
    "touch": make_touch,
    "death": make_death,
    "failure": lambda: fail,
    "wait": lambda seconds: lambda: time.sleep(seconds),
}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "arms_of_a_peer.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def process(script: Path) -> Iterator[ArmProcess]:
    with ArmProcess.here(script) as process:
        yield process


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values.pt"
    torch.save(torch.arange(4.0), path)
    return path


def test_arms_here_and_there_are_interleaved_in_one_comparison(
    process: ArmProcess, values: Path
) -> None:
    ours = Arm("ours", lambda: torch.arange(4.0) * 2)
    theirs = process.arm("scale", name="theirs", path=str(values), factor=2.0)
    measured = compare(
        [ours, theirs], baseline="theirs", same=same_bits, rounds=3, sample_seconds=0.001
    )
    assert [each.arm for each in measured] == ["ours", "theirs"]
    assert all(each.wall_seconds.median > 0 for each in measured)


def test_a_peer_that_makes_something_else_is_not_compared(
    process: ArmProcess, values: Path
) -> None:
    ours = Arm("ours", lambda: torch.arange(4.0) * 2)
    theirs = process.arm("scale", path=str(values), factor=3.0)
    with pytest.raises(UnequalError, match="`ours` and `scale` made different things"):
        compare([ours, theirs], baseline="scale", same=same_bits, rounds=1)


def test_preparation_happens_here_before_each_sample(process: ArmProcess) -> None:
    prepared: list[int] = []
    arm = process.arm("wait", seconds=0.0, prepare=lambda: prepared.append(1), events=10)
    [measured] = compare([arm], baseline="wait", same=not_compared, rounds=2)
    assert measured.calls == 1
    assert len(prepared) == 4  # one result, one warm-up, two rounds


def test_waiting_is_no_cpu_time_over_there_either(process: ArmProcess) -> None:
    sample = process.arm("wait", seconds=0.05).sample(2)
    assert sample.wall_seconds >= 0.05
    assert sample.cpu_seconds < sample.wall_seconds / 2


def test_peak_memory_is_that_of_the_arm_alone(process: ArmProcess) -> None:
    small = process.arm("touch", mebibytes=1).measure_peak()
    large = process.arm("touch", mebibytes=65).measure_peak()
    again = process.arm("touch", mebibytes=1).measure_peak()
    assert large["growth_bytes"] >= 64 * 2**20
    assert large["peak_bytes"] > large["growth_bytes"]
    assert small["growth_bytes"] < 32 * 2**20
    assert again["growth_bytes"] < 32 * 2**20


def test_an_error_over_there_is_told_here_and_the_process_lives_on(process: ArmProcess) -> None:
    with pytest.raises(PeerError, match="ValueError: no such graph"):
        process.arm("failure").sample(1)
    with pytest.raises(PeerError, match="KeyError: 'unknown'"):
        process.arm("unknown")
    process.arm("wait", seconds=0.0).sample(1)


def test_a_process_that_dies_is_reported_with_its_last_words(process: ArmProcess) -> None:
    arm = process.arm("death", status=7)
    with pytest.raises(PeerError) as caught:
        arm.sample(1)
    assert "ended with status 7 at `sample`" in str(caught.value)
    assert "last words" in str(caught.value)
    with pytest.raises(PeerError, match="ended with status 7"):
        arm.sample(1)


def test_a_process_that_does_not_answer_is_stopped(script: Path) -> None:
    with ArmProcess(script, Path(sys.executable), reply_seconds=20.0) as process:
        arm = process.arm("wait", seconds=60.0)
        process.reply_seconds = 0.1
        with pytest.raises(PeerError, match=r"`sample` had no reply after 0.1 s"):
            arm.sample(1)


def test_a_script_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import package_that_is_not_there\n")
    with ArmProcess.here(script) as process, pytest.raises(PeerError) as caught:
        process.arm("anything")
    assert "No module named 'package_that_is_not_there'" in str(caught.value)


def test_a_missing_environment_says_how_to_make_it(script: Path, tmp_path: Path) -> None:
    with pytest.raises(PeersMissingError, match="`make peers` installs what we compare with"):
        ArmProcess(script, tmp_path / "nowhere" / "python")
