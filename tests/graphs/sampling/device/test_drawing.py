"""The kernels in Triton's interpreter draw what the CPU draws, number for number."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.triton_programs import run_interpreted

PROGRAM = "tests.graphs.sampling.device.interpreted_samples"


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 0), pytest.param(1500, 1, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(1200)
def test_samples_are_those_of_the_cpu(count: int, seed: int) -> None:
    cases = run_interpreted(PROGRAM, count, seed)
    assert len({each["name"] for each in cases}) > count
    assert [each for each in cases if each["problem"]] == []
