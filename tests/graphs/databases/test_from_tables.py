"""Tables as graphs: against rows joined by hand, from every kind of source."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from pathlib import Path
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
    elif kind in ("ipc", "ipc stream", "feather"):
        for name, table in arrow.items():
            sources[name] = place / name
            if kind == "feather":
                pytest.importorskip("pyarrow.feather").write_feather(table, sources[name])
                continue
            write = pyarrow.ipc.new_file if kind == "ipc" else pyarrow.ipc.new_stream
            with write(sources[name], table.schema) as writer:
                writer.write_table(table)
    elif kind == "pandas":
        pandas = pytest.importorskip("pandas")
        sources = {"users": pandas.DataFrame(USERS), "orders": pandas.DataFrame(ORDERS)}
    tables = {
        name: Table(sources[name], each.primary_key, each.foreign_keys, each.time, each.columns)
        for name, each in WANTED.items()
    }
    return sh.graphs.from_tables(tables, **options)


KINDS = [
    "arrow",
    "parquet",
    "ipc",
    "ipc stream",
    "feather",
    "pandas",
    "sqlite",
    "sqlite connection",
    "duckdb",
    "duckdb connection",
]


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


def _edges(made: DatabaseGraph) -> list[tuple[int, int]]:
    half = made.graph.num_edges // 2
    return list(
        zip(made.graph.source[:half].tolist(), made.graph.target[:half].tolist(), strict=True)
    )


@pytest.mark.parametrize("called", ["rowid", "RowId"])
def test_a_column_that_is_called_as_row_numbers_are(called: str, tmp_path: Path) -> None:
    """Its values join nothing, and it is a column like others."""
    users = {called: [7, 9, 8], "id": [1, 2, 3], "row_number": [1, 1, 2]}
    orders = {called: [40, 30], "buyer": [3, 1]}
    tables = {
        "users": Table(pyarrow.table(users), "id"),
        "orders": Table(pyarrow.table(orders), None, {"buyer": "users"}),
    }
    for folder in (None, tmp_path):
        made = sh.graphs.from_tables(tables, folder=folder)
        assert _edges(made) == [(3, 2), (4, 0)]
        assert made.find_nodes("users", [3, 1]).tolist() == [2, 0]
        assert made.feature_names["orders"] == (called, f"{called} is missing")
        assert len(made.feature_names["users"]) == 4
        rows = made.features["users"][torch.arange(3)]
        assert rows[:, 0].argsort().tolist() == [0, 2, 1]


def test_a_row_number_may_be_the_key() -> None:
    tables = {
        "users": Table(pyarrow.table({"rowid": [7, 9]}), "rowid"),
        "orders": Table(pyarrow.table({"rowid": [9, 7, 9]}), None, {"rowid": "users"}),
    }
    assert _edges(sh.graphs.from_tables(tables)) == [(2, 1), (3, 0), (4, 1)]


def test_a_foreign_key_may_hold_another_column_than_the_primary_key() -> None:
    users = pyarrow.table({"id": [1, 2, 3], "code": [2, 3, None]})
    orders = Table(pyarrow.table({"buyer": [3, 2, 9]}), None, {"buyer": ("users", "code")})
    made = sh.graphs.from_tables({"users": Table(users, "id"), "orders": orders})
    assert _edges(made) == [(3, 1), (4, 0)]
    assert list(made.unmatched.values()) == [1]
    twice = Table(pyarrow.table({"code": [2, 2]}))
    with pytest.raises(DatabaseError, match="its column `code` has 2 in 2 rows"):
        sh.graphs.from_tables({"users": twice, "orders": orders})


SCRIPT = """
import os, sys, time
os.environ["TZ"] = "America/New_York"
time.tzset()
import pyarrow, torch, shorthaul as sh
moments = pyarrow.array([1577836800_000000, None], pyarrow.timestamp("us", "Asia/Tokyo"))
texts = ["2020-01-01 02:00:00+02:00", "2020-01-01"]
made = sh.graphs.from_tables({
    "a": sh.graphs.Table(pyarrow.table({"t": moments}), time="t", columns={"t": "timestamp"}),
    "b": sh.graphs.Table(pyarrow.table({"t": texts}), time="t", columns={"t": "timestamp"}),
})
print(made.graph.node_data["time"].tolist(), made.features["a"][0, 1:3].tolist(), made.features["b"][0, 1:3].tolist())
"""


def test_moments_are_those_of_utc_wherever_the_machine_is() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    first = 1577836800_000000
    assert ran.stdout.strip() == f"{[first, -(2**63), first, first]} [0.0, 1.0] [0.0, 1.0]"


def test_columns_of_every_type_are_encoded_or_named() -> None:
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE t AS SELECT TIME '06:00:00' AS daily, 'b'::ENUM('a', 'b') AS kind, "
        "[1.0::FLOAT] AS list, [1.0, 2.0]::FLOAT[2] AS pair, 3::UTINYINT AS small, 1.5::DECIMAL(5, 2) AS price, "
        "INTERVAL 2 DAY AS span, {'a': 1} AS parts, TIMESTAMPTZ '2020-01-01 00:00:00+00' AS zoned FROM range(2)"
    )
    made = sh.graphs.from_tables({"t": Table()}, database=connection)
    assert {name.split()[0] for name in made.feature_names["t"]} == {
        "daily", "kind", "small", "price", "span", "zoned",
    }  # fmt: skip
    assert made.feature_names["t"][:3] == (
        "daily",
        "daily sine of the day",
        "daily cosine of the day",
    )
    assert made.features["t"][0, 1:3].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert made.unencoded == {
        "t": {"list": "FLOAT[]", "pair": "FLOAT[2]", "parts": "STRUCT(a INTEGER)"}
    }


def test_a_column_of_unique_ids_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    duckdb.connect().execute(f"COPY (SELECT uuid() AS u FROM range(2)) TO '{path}'")
    made = sh.graphs.from_tables({"t": Table(path)})
    assert made.unencoded == {"t": {"u": "UUID"}}
    assert not made.features


def test_categories_of_pandas_are_categories() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"kind": pandas.Categorical(["x", "y", "x", None])})
    made = sh.graphs.from_tables({"t": Table(frame)})
    assert made.feature_names["t"] == ("kind is x", "kind is y", "kind is another")
    assert made.features["t"].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_what_was_registered_in_a_connection_is_found() -> None:
    connection = duckdb.connect()
    connection.register("users", pyarrow.table(USERS))
    made = sh.graphs.from_tables({"users": Table(primary_key="id")}, database=connection)
    assert made.graph.nodes_per_type == (3,)


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([1, 2, None], "s", [1_000_000, 2_000_000]),
        ([1.5, float("nan"), 2.25], "s", [1_500_000, -(2**63), 2_250_000]),
        ([1, 2, 3], "ms", [1_000, 2_000, 3_000]),
        ([1_500, 2_000, 3_000], "ns", [1, 2, 3]),
        ([1, 2, None], None, [1, 2]),
    ],
)
def test_times_that_are_numbers(values: list[Any], unit: str | None, expected: list[int]) -> None:
    table = Table(pyarrow.table({"t": values}), time="t", columns={}, time_unit=unit)
    times = sh.graphs.from_tables({"t": table}).graph.node_data["time"].tolist()
    assert times[: len(expected)] == expected


def test_times_of_several_units_are_told_apart() -> None:
    dated = Table(pyarrow.table({"t": ["2020-01-01"]}), time="t")
    counted = {"t": [1577836800]}
    with pytest.raises(DatabaseError, match="its time `t` holds whole numbers, that of `a` is in"):
        sh.graphs.from_tables({"a": dated, "b": Table(pyarrow.table(counted), time="t")})
    seconds = Table(pyarrow.table(counted), time="t", time_unit="s")
    made = sh.graphs.from_tables({"a": dated, "b": seconds})
    assert made.graph.node_data["time"].tolist() == [1577836800_000000] * 2


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
        ({"a": Table(pyarrow.table({"t": [1.5]}), time="t")}, "Say what they count since 1970"),
        (
            {"a": Table(pyarrow.table({"t": ["x"]}), time="t", time_unit="s")},
            "time_unit is 's', but `t` holds no numbers",
        ),
        (
            {"a": Table(pyarrow.table({"t": [1]}), time="t", time_unit="minutes")},
            "it is one of 's', 'ms', 'us', 'ns', or None",
        ),
        (
            {"a": Table(pyarrow.table({"b": [1]}), None, {"b": ("a", "c")})},
            "it has no column `c`; there are b",
        ),
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
