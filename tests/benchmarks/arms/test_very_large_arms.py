"""Arms that train on a graph on disk, on one that is small."""

from pathlib import Path

import pytest
import torch

import shorthaul as sh
from benchmarks.arms import very_large_arms
from benchmarks.arms.very_large_arms import ARMS
from benchmarks.questions.bench_very_large_graph import MOST_NODES, choose_largest
from benchmarks.questions.bench_wire_overlap import find_hidden_share


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(very_large_arms, "SIZE", 64)
    monkeypatch.setattr(very_large_arms, "FAN_OUTS", [3, 2, 2])
    sh.datasets.write_power_law_graph(
        tmp_path, nodes=4000, edges=40_000, features=128, train=0.1, progress=False
    )
    return tmp_path


def test_all_arms_train_on_the_same_batches_and_tell_what_they_read(folder: Path) -> None:
    asked = {"folder": str(folder), "count": 3, "threads": torch.get_num_threads()}
    runs = {
        "mapped": ARMS["disk"](**asked, cache="256MiB", mapped=True),
        "requests": ARMS["disk"](**asked, cache="256MiB", mapped=False),
        "memmap": ARMS["memmap"](**asked),
    }
    found = {name: run() for name, run in runs.items()}
    for each in found.values():
        assert each["batches"] == 3
        assert each["ideal_bytes"] == each["input_rows"] * 512
        assert each["loss"] == pytest.approx(found["mapped"]["loss"], rel=1e-4)
        assert each["input_rows"] == found["mapped"]["input_rows"]
    mapped, requests = found["mapped"], found["requests"]
    assert 0 < mapped["hit_share"] == requests["hit_share"] < 1
    assert mapped["feature_bytes"] == requests["feature_bytes"]
    assert requests["read_bytes"] > mapped["read_bytes"] >= mapped["feature_bytes"]
    again = runs["mapped"]()  # other seeds, and a cache that is filled
    assert again["hit_share"] > mapped["hit_share"]


def test_the_largest_graph_leaves_room_on_the_disk() -> None:
    assert choose_largest(10**12) == MOST_NODES
    small = choose_largest(60 * 10**9)
    assert small % 10**6 == 0
    assert 55 * 10**6 < small < 70 * 10**6


def test_what_is_hidden_is_a_share_of_the_shorter() -> None:
    assert find_hidden_share(2.0, 3.0, 3.0) == 1
    assert find_hidden_share(3.0, 2.0, 5.0) == 0
    assert find_hidden_share(2.0, 3.0, 9.0) == 0
    assert find_hidden_share(1.0, 3.0, 3.5) == 0.5
