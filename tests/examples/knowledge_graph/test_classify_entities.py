"""The example learns who belongs where in a graph made for it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "knowledge_graph" / "classify_entities.py"


def _write_entities(folder: Path) -> None:
    """Persons of two groups; who works with whom gives the group away."""
    people = [f"http://example.org/p{number}" for number in range(24)]
    triples = [
        f"<{one}> <http://example.org/works_with> <{other}> ."
        for number, one in enumerate(people)
        for other in people[number % 2 :: 2]
    ]
    triples += [
        f"<{one}> <http://example.org/is_a> <http://example.org/person> ." for one in people
    ]
    (folder / "group.nt").write_text("\n".join(triples) + "\n")
    for part, chosen in (("training", range(16)), ("test", range(16, 24))):
        rows = [f"{people[number]}\t{number}.0\tgroup{number % 2}" for number in chosen]
        text = "\n".join(["person\tid\tlabel_group", *rows])
        (folder / f"{part}Set.tsv").write_text(text + "\n")


def test_groups_are_told(monkeypatch, capsys, tmp_path):
    _write_entities(tmp_path)
    arguments = [str(tmp_path), "--epochs", "20", "--bases", "2"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert "16 nodes to learn from, 8 to tell, 2 classes" in said
    assert "accuracy 100.0%" in said


def test_a_folder_without_triples_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    with pytest.raises(SystemExit, match="no triples"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
