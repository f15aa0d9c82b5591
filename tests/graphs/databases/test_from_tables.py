"""Tables as graphs: against rows joined by hand, from every kind of source."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import DatabaseError, ForeignKeyError
from shorthaul.graphs import DatabaseGraph, Table

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

USERS: dict[str, list[Any]] = {
    "id": [30, 10, 20],
    "age": [40.0, None, 20.0],
    "country": ["de", None, "fr"],
    "joined": ["2020-01-01 00:00:00", "2020-01-03 12:00:00", None],
}
ORDERS: dict[str, list[Any]] = {
    "buyer": [10, 30, 30, None, 99, 20],
    "amount": [5, 7, 7, 1, 3, 2],
    "note": ["fast", "Very fast", None, "slow slow", "", "x"],
}
WANTED = {
    "users": Table(
        primary_key="id",
        time="joined",
        columns={"age": "number", "country": "category", "joined": "timestamp"},
    ),
    "orders": Table(foreign_keys={"buyer": "users"}, columns={"amount": "number", "note": "text"}),
}


def write_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL, country TEXT, joined TEXT)"
        )
        database.execute(
            "CREATE TABLE orders (buyer INTEGER REFERENCES users(id), amount INTEGER, note TEXT)"
        )
        for rows, name, marks in ((USERS, "users", "?,?,?,?"), (ORDERS, "orders", "?,?,?")):
            database.executemany(
                f"INSERT INTO {name} VALUES ({marks})", zip(*rows.values(), strict=True)
            )
    database.close()


def make(kind: str, place: Path, **options: Any) -> DatabaseGraph:
    arrow = {"users": pyarrow.table(USERS), "orders": pyarrow.table(ORDERS)}
    if kind in ("sqlite", "sqlite connection"):
        write_sqlite(place / "shop.db")
        given: Any = place / "shop.db"
        if kind == "sqlite connection":
            given = sqlite3.connect(given)
        return sh.graphs.from_tables(WANTED, database=given, **options)
    if kind in ("duckdb", "duckdb connection"):
        connection = duckdb.connect(str(place / "shop.duckdb"))
        for name, table in arrow.items():
            connection.register("rows", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
            connection.unregister("rows")
        if kind == "duckdb connection":
            return sh.graphs.from_tables(WANTED, database=connection, **options)
        connection.close()
        return sh.graphs.from_tables(WANTED, database=place / "shop.duckdb", **options)
    sources: dict[str, Any] = dict(arrow)
    if kind == "parquet":
        for name, table in arrow.items():
            sources[name] = place / f"{name}.parquet"
            pytest.importorskip("pyarrow.parquet").write_table(table, sources[name])
    elif kind == "pandas":
        pandas = pytest.importorskip("pandas")
        sources = {"users": pandas.DataFrame(USERS), "orders": pandas.DataFrame(ORDERS)}
    tables = {
        name: Table(sources[name], each.primary_key, each.foreign_keys, each.time, each.columns)
        for name, each in WANTED.items()
    }
    return sh.graphs.from_tables(tables, **options)


KINDS = ["arrow", "parquet", "pandas", "sqlite", "sqlite connection", "duckdb", "duckdb connection"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_makes_the_same_graph(kind: str, tmp_path: Path) -> None:
    made = make(kind, tmp_path)
    graph, users = made.graph, USERS["id"]
    if kind.startswith("sqlite"):
        users = sorted(users)  # SQLite keeps rows by their integer key
    assert graph.nodes_per_type == (3, 6)
    assert [str(each) for each in graph.relations] == [
        "orders buyer users",
        "users buyer_reversed orders",
    ]
    expected = [
        (3 + row, users.index(key)) for row, key in enumerate(ORDERS["buyer"]) if key in users
    ]
    assert list(zip(graph.source.tolist(), graph.target.tolist(), strict=True)) == [
        *expected,
        *((other, one) for one, other in expected),
    ]
    assert list(made.unmatched.values()) == [1]
    moments = {30: 1577836800_000000, 10: 1578052800_000000, 20: -(2**63)}
    assert graph.node_data["time"].tolist() == [moments[each] for each in users] + [-(2**63)] * 6
    assert made.find_nodes("users", [20, 30]).tolist() == [users.index(20), users.index(30)]
    ages = {30: (1.0, 0.0), 10: (0.0, 1.0), 20: (-1.0, 0.0)}
    assert made.features["users"][:, :2].tolist() == [list(ages[each]) for each in users]
    countries = {30: [1.0, 0.0, 0.0], 10: [0.0, 0.0, 0.0], 20: [0.0, 1.0, 0.0]}
    assert made.features["users"][:, 2:5].tolist() == [countries[each] for each in users]
    assert made.feature_names["users"][2:5] == (
        "country is de",
        "country is fr",
        "country is another",
    )


def test_columns_are_encoded_as_they_say(tmp_path: Path) -> None:
    made = make("arrow", tmp_path)
    amounts = np.array(ORDERS["amount"], dtype=np.float64)
    scaled = (amounts - amounts.mean()) / amounts.std()
    torch.testing.assert_close(
        made.features["orders"][:, 0], torch.tensor(scaled, dtype=torch.float32)
    )
    words = made.features["orders"][:, 2:]
    assert words.shape[1] == 64
    assert words.norm(dim=1).tolist() == pytest.approx([1, 1, 0, 1, 0, 1])
    assert float(words[0] @ words[1]) == pytest.approx(1 / math.sqrt(2))
    times = made.features["users"][:, 5:]
    assert times[2].tolist() == [0.0] * 7
    assert times[:2, 0].tolist() == pytest.approx([-1.0, 1.0])
    assert times[0, 1:3].tolist() == pytest.approx([0.0, 1.0])  # midnight
    assert times[1, 1:3].tolist() == pytest.approx([0.0, -1.0], abs=1e-6)  # noon


def test_features_on_disk_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make("arrow", tmp_path)
    monkeypatch.setattr("shorthaul.graphs.databases.from_tables._ROWS_AT_ONCE", 2)
    made = make("arrow", tmp_path, folder=tmp_path / "features")
    for name, rows in expected.features.items():
        on_disk = made.features[name]
        assert isinstance(on_disk, sh.UnifiedTensor)
        assert torch.equal(on_disk[torch.arange(len(rows))], rows)


def test_given_rows_stand_for_a_column() -> None:
    rows = torch.arange(6.0).view(3, 2)
    table = Table(pyarrow.table(USERS), "id", columns={"meaning": rows})
    made = sh.graphs.from_tables({"users": table})
    assert torch.equal(made.features["users"], rows)
    assert made.feature_names["users"] == ("meaning 0", "meaning 1")


def test_sqlite_says_itself_which_keys_it_has(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "shop.db")
    made = sh.graphs.from_tables(database=tmp_path / "shop.db")
    assert made.graph.node_types == ("orders", "users")
    assert str(made.graph.relations[0]) == "orders buyer users"
    assert made.graph.edges_per_relation == (4, 4)


def test_keys_without_a_match_are_an_error_when_strict(tmp_path: Path) -> None:
    with pytest.raises(
        ForeignKeyError, match="1 values of `buyer` match no primary key of `users`"
    ):
        make("arrow", tmp_path, strict=True)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"a": Table(3)}, "its source is int; pass a pandas DataFrame"),
        ({"a": Table()}, "it has no `source`, and there is no `database`"),
        ({"a": Table(pyarrow.table({"id": [1, 1]}), "id")}, "its primary key `id` has 1 in 2 rows"),
        ({"a": Table(pyarrow.table({"id": [1, None]}), "id")}, "its primary key `id` is NULL"),
        ({"a": Table(pyarrow.table({"id": [1]}), "key")}, "it has no column `key`; there are id"),
        (
            {"a": Table(pyarrow.table({"b": [1]}), None, {"b": "b"})},
            "`b` refers to `b`, which is no",
        ),
        (
            {"a": Table(pyarrow.table({"t": ["x"]}), time="t")},
            "Could not convert|invalid timestamp",
        ),
        ({"a": Table(pyarrow.table({"t": [1]}), columns={"t": "sound"})}, "`t` is to be 'sound'"),
        ({"a": Table(pyarrow.table({"t": [1]}), columns={"e": torch.ones(2, 2)})}, "with 1 rows"),
        ({}, "there is no table"),
    ],
)
def test_what_does_not_fit_is_named(tables: dict[str, Table], told: str) -> None:
    with pytest.raises(DatabaseError, match=told):
        sh.graphs.from_tables(tables)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but words and words" * 200)
    with pytest.raises(DatabaseError, match="neither SQLite nor DuckDB"):
        sh.graphs.from_tables(WANTED, database=tmp_path / "text")
    with pytest.raises(DatabaseError, match="there is no such file"):
        sh.graphs.from_tables(WANTED, database=tmp_path / "gone")


def test_a_task_of_relbenchs_form_trains_with_nothing_from_the_future() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    start = pandas.Timestamp("2020-01-01")
    users = pandas.DataFrame({"user": np.arange(20), "age": rng.integers(18, 80, 20)})
    sold = pandas.DataFrame(
        {
            "buyer": rng.integers(0, 20, 300),
            "price": rng.random(300),
            "date": start + pandas.to_timedelta(rng.integers(0, 100, 300), "D"),
        }
    )
    database = SimpleNamespace(
        table_dict={
            "users": SimpleNamespace(
                df=users, pkey_col="user", fkey_col_to_pkey_table={}, time_col=None
            ),
            "sold": SimpleNamespace(
                df=sold, pkey_col=None, fkey_col_to_pkey_table={"buyer": "users"}, time_col="date"
            ),
        }
    )
    asked = pandas.DataFrame(
        {
            "user": rng.integers(0, 20, 40),
            "date": start + pandas.to_timedelta(rng.integers(20, 80, 40), "D"),
            "churn": rng.integers(0, 2, 40),
        }
    )
    task = SimpleNamespace(
        entity_col="user",
        entity_table="users",
        time_col="date",
        target_col="churn",
        get_table=lambda split: SimpleNamespace(df=asked),
    )
    made = sh.graphs.from_relbench(database)
    rows = sh.graphs.read_task(made, task, "train")
    loader = sh.MiniBatchLoader(
        made.graph,
        made.features,
        seeds=rows.seeds,
        times=rows.times,
        seed_labels=rows.labels,
        batch_size=16,
        fan_outs=sh.NeighborSampler(made.graph, [-1], node_times="time"),
    )
    moments = asked["date"].to_numpy()
    for batch in loader:
        assert batch.labels is not None
        assert batch.inputs is not None
        assert batch.labels.tolist() == asked["churn"].to_numpy()[batch.inputs].tolist()
        for place, row in enumerate(batch.inputs.tolist()):
            seen = ((sold["buyer"] == asked["user"][row]) & (sold["date"] <= moments[row])).sum()
            assert int(batch.blocks[0].degrees()[place]) == seen
    with pytest.raises(DatabaseError, match="it has no `entity_col`"):
        sh.graphs.read_task(made, SimpleNamespace(), "train")
