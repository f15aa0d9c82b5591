"""The far side answers each request on one line, whatever the arm does."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.peers.arm_server import Arms, load_script, serve


def _ask(arms: Arms, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    replies = io.StringIO()
    serve(arms, io.StringIO("".join(json.dumps(each) + "\n" for each in requests)), replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_arms_are_made_and_numbered() -> None:
    arms = Arms({"double": lambda value: lambda: 2 * value})
    make = {"do": "make", "arm": "double", "arguments": {"value": 4}}
    assert _ask(arms, make, make) == [{"number": 0}, {"number": 1}]
    assert arms.made[1]() == 8


def test_a_sample_calls_as_often_as_asked() -> None:
    calls: list[int] = []
    arms = Arms({"count": lambda: lambda: calls.append(1)})
    _, sample = _ask(
        arms,
        {"do": "make", "arm": "count", "arguments": {}},
        {"do": "sample", "number": 0, "calls": 7},
    )
    assert len(calls) == 7
    assert sample.keys() == {"wall_seconds", "cpu_seconds"}
    assert sample["wall_seconds"] > 0


def test_results_are_saved(tmp_path: Path) -> None:
    arms = Arms({"ones": lambda: lambda: torch.ones(3)})
    path = tmp_path / "result.pt"
    replies = _ask(
        arms,
        {"do": "make", "arm": "ones", "arguments": {}},
        {"do": "result", "number": 0, "path": str(path)},
    )
    assert replies[1].keys() == {"wall_seconds", "cpu_seconds"}
    assert torch.load(path, weights_only=True).tolist() == [1, 1, 1]


def test_an_error_is_told_and_the_next_request_is_answered() -> None:
    def fail() -> None:
        raise ValueError("no such graph")

    arms = Arms({"fails": lambda: fail, "works": lambda: lambda: None})
    replies = _ask(
        arms,
        {"do": "make", "arm": "fails", "arguments": {}},
        {"do": "sample", "number": 0, "calls": 1},
        {"do": "make", "arm": "unknown", "arguments": {}},
        {"do": "make", "arm": "works", "arguments": {}},
    )
    assert replies[0] == {"number": 0}
    assert "ValueError: no such graph" in replies[1]["error"]
    assert "KeyError: 'unknown'" in replies[2]["error"]
    assert replies[3] == {"number": 1}


def test_a_script_is_loaded_from_its_path(tmp_path: Path) -> None:
    script = tmp_path / "arms_of_a_peer.py"
    script.write_text("ARMS = {'one': lambda: lambda: 1}\n")
    assert load_script(script).ARMS["one"]()() == 1
    with pytest.raises(ImportError, match="is not a Python script"):
        load_script(tmp_path / "arms.txt")
