"""The questions for a GPU run from the first arm to the ledger and the table, on pretended devices."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch_geometric")

from tests.triton_programs import ROOT, run_interpreted

PROGRAM = "tests.benchmarks.questions.gpu.pretended_questions"
NAMES = sorted(
    path.stem.removeprefix("bench_")
    for path in (ROOT / "benchmarks" / "questions" / "gpu").glob("bench_*.py")
)
# Peers that no environment of ours has beside a GPU: they stay in the table, and say why.
ABSENT = {
    "gpu_gathers": {"DGL, pinned rows", "DGL GraphBolt, UVA"},
    "gpu_sampling": {"DGL GraphBolt, UVA", "PyG with pyg-lib"},
    "gpu_relational": {"DGL"},
    "gpu_convolution": set(),
    "gpu_offload": {"TRL", "torchtune"},
}


@functools.cache
def _answers() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in run_interpreted(PROGRAM, 0, 0)}


def test_every_question_is_tried() -> None:
    assert set(NAMES) == set(ABSENT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_answered(name: str) -> None:
    told = _answers()[name]
    assert told["problem"] == ""
    rows, machine = told["run"]["rows"], told["run"]["machine"]
    assert {row["arm"] for row in rows if not row["rounds"]} == ABSENT[name]
    assert all(row["figures"] == {"not_installed": 1.0} for row in rows if not row["rounds"])
    timed = [row for row in rows if row["rounds"]]
    assert any(row["arm"].startswith("shorthaul") for row in timed)
    for row in timed:  # by the clock of pretended devices, which counts events
        assert 0 < row["wall_seconds"]["median"] * row["calls"] < 1, row
    for missing in ABSENT[name]:
        assert f"| {missing} | - | - | - | not installed |" in told["table"]
    assert (machine["gpu"], machine["gpu_capability"], machine["gpus"]) == ("pretended", "8.0", 2)
    assert {"gpu_driver", "cuda", "cudnn", "triton", "gpu_memory_bytes"} <= machine.keys()
    assert "pretended" in told["table"].rpartition("\n")[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_peers_that_are_installed_take_part() -> None:
    pytest.importorskip("trl")
    (told,) = (each for each in run_interpreted(PROGRAM, 1, 0) if each["name"] == "gpu_offload")
    assert told["problem"] == ""
    assert "TRL" in {row["arm"] for row in told["run"]["rows"] if row["rounds"]}
