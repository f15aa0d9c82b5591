"""The example makes a true database, and its model learns from it."""

import sqlite3
from pathlib import Path

import pytest
import torch

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
pytest.importorskip("torch_geometric")

from examples.relational_database.standard_library import write_database
from examples.relational_database.train import main


def test_the_database_holds_what_the_library_defines(tmp_path: Path) -> None:
    write_database(tmp_path / "library.db", most_modules=12)
    with sqlite3.connect(tmp_path / "library.db") as database:
        (modules,) = database.execute("SELECT count(*) FROM modules").fetchone()
        query = (
            "SELECT f.name FROM functions f JOIN modules m ON f.module = m.id WHERE m.name = 'abc'"
        )
        names = {row[0] for row in database.execute(query)}
    database.close()
    assert modules == 12
    assert "abstractmethod" in names


def test_the_model_tells_more_than_one_answer_would(capsys: pytest.CaptureFixture) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        accuracy = main(epochs=3, most_modules=40)
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert "calls caller functions" in said
    assert "22 graph layers compiled, 0 left as they were" in said
    assert accuracy > float(said.rsplit("answer: ", 1)[1].removesuffix("%\n")) / 100
