"""The command cuts what it is given, and says what each part has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shorthaul.cli.program import program
from shorthaul.distributed.partition.manifest import Manifest
from tests.distributed.part_folders import drawn_graph, features_of, typed_graph


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(program, ["partition", *map(str, words)])
    return done.exit_code, done.output


def test_a_saved_graph_is_cut(tmp_path: Path) -> None:
    drawn_graph().save(tmp_path / "graph")
    np.save(tmp_path / "x.npy", features_of(60).numpy())
    np.save(tmp_path / "train.npy", np.arange(20))
    words = (tmp_path / "graph", tmp_path / "out", "--parts", 2, "--hot", 0.05, "--features")
    code, said = run(*words, tmp_path / "x.npy", "--seeds", tmp_path / "train.npy", "--json")
    assert code == 0, said
    found = json.loads(said)
    assert sum(each["nodes"] for each in found["parts"]) == 60
    assert sum(each["seeds"] for each in found["parts"]) == 20
    assert found["hot_bytes"] == 3 * 24
    assert Manifest.read(tmp_path / "out").book.parts == 2


def test_the_table_is_shown(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    code, said = run(tmp_path / "edges.npy", tmp_path / "out", "--parts", 1, "--method", "range")
    assert code == 0, said
    assert "0.0% of the edges cut" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--features", "x.npy"), "is of no type"),
        (("--fan-outs", "many"), "whole numbers with commas"),
    ],
)
def test_wrong_words_are_named(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    typed_graph().save(tmp_path / "graph")
    code, output = run(tmp_path / "graph", tmp_path / "out", "--parts", 2, *words)
    assert code == 2
    assert said in output
