"""Drawn convolutions above the size from which kernels are specialized, by every method, against float64."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shorthaul.conv.problem.machine import this_machine
from tests.conv import large
from tests.conv.large import (
    METHODS,
    check,
    check_schedule,
    check_tiles,
    draw_cases,
    select_cases,
    select_tiles,
)

ROOT = Path(__file__).parents[3]


def methods_of(kernels: set[str]) -> set[str]:
    """The methods of forward passes and input gradients, by the names of the kernels that ran."""
    return {name.split("_")[1].rstrip("24") for name in kernels}


@pytest.mark.timeout(900)  # with a cold cache dozens of kernels are compiled
def test_every_method_here() -> None:
    launched: set[str] = set()
    for case in select_cases(0, 10):
        launched |= check(case)
    assert methods_of(launched) >= METHODS.get(this_machine().name, {"window"})
    assert any(name.startswith("conv_grad_weight_") for name in launched)
    if this_machine().multiplies_pairs:
        assert any(name.endswith("_pairs") for name in launched)


@pytest.mark.timeout(900)
@pytest.mark.skipif(this_machine().name != "avx512", reason="there is nothing to hold back")
def test_every_method_held_to_avx2() -> None:
    check_held_to_avx2(0, 8)


def test_cases_are_different_and_have_every_method() -> None:
    cases = select_cases(1, 40, 400)
    assert len(set(cases)) == 40
    methods = {each.method().split()[0] for each in cases if not each.is_transposed}
    assert methods >= METHODS.get(this_machine().name, {"window"})


def test_what_is_drawn_covers_what_there_is() -> None:
    stream = draw_cases(1)
    features = set().union(*(next(stream).features() for _ in range(1000)))
    assert {
        f"{count} dimensions {each}" for count in (2, 3) for each in ("contiguous", "channels_last")
    } <= features
    assert {"1 dimensions contiguous", "transposed", "groups", "stride 3", "dilation 3"} <= features
    assert {"zeros", "reflect", "replicate", "circular", "symmetric"} <= features
    assert {f"torch.{each}" for each in ("float32", "float64", "bfloat16", "float16")} <= features


def test_the_check_fails_on_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(
        each for each in draw_cases(2) if each.method() == "planar" and not each.is_transposed
    )
    truth = large._run_double
    monkeypatch.setattr(large, "_run_double", lambda *given: truth(*given) * 1.01)
    with pytest.raises(AssertionError, match="of the largest value"):
        check(case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_here(seed: int) -> None:
    for case in select_cases(seed, 40):
        check(case, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(this_machine().name != "avx512", reason="there is nothing to hold back")
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_held_to_avx2(seed: int) -> None:
    check_held_to_avx2(seed, 40)


@pytest.mark.parametrize("seed", [5, 6])
def test_every_tile_is_drawn(seed: int) -> None:
    others = set().union(*(select_tiles(each, 500) for each in (1, 2, 3)))
    assert others <= set(select_tiles(seed))


def test_the_check_of_a_tile_fails_on_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    case, schedule = next(
        chosen for tile, chosen in select_tiles(5, 50).items() if tile[0] == "planar"
    )
    truth = large.aten.run_forward
    monkeypatch.setattr(large.aten, "run_forward", lambda *given: truth(*given) * 1.01)
    with pytest.raises(AssertionError, match="of the largest value"):
        check_schedule(case, schedule)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [5, 6])
def test_every_tile_here(seed: int) -> None:
    assert {tile[0].rstrip("24") for tile in check_tiles(seed)} >= METHODS.get(
        this_machine().name, {"window"}
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(this_machine().name != "avx512", reason="there is nothing to hold back")
def test_every_tile_held_to_avx2() -> None:
    tiles = run_held_to_avx2("--seed", "5", "--tiles")
    assert {tile[0].rstrip("24") for tile in tiles} >= METHODS["avx2"]
    assert not any(has_pairs for *_, has_pairs in tiles)


def check_held_to_avx2(seed: int, cases: int) -> None:
    launched = set(run_held_to_avx2("--seed", str(seed), "--cases", str(cases)))
    assert methods_of(launched) >= METHODS["avx2"]
    assert not any(name.endswith("_pairs") or name.startswith("conv_sweep") for name in launched)


def run_held_to_avx2(*words: str) -> list[Any]:
    """In a process of its own: kernels and plans are remembered with the machine that they are for."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.conv.large", "avx2", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    printed: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return printed
