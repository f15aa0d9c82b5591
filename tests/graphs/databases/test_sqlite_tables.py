"""What a SQLite file declares, and columns whose values have several types."""

import sqlite3

import pytest

import shorthaul as sh
from shorthaul.errors import DatabaseError
from shorthaul.graphs import DatabaseGraph, Table

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


def _connect(script: str) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.executescript(script)
    return database


def _edges(made: DatabaseGraph) -> list[tuple[int, int]]:
    half = made.graph.num_edges // 2
    return list(
        zip(made.graph.source[:half].tolist(), made.graph.target[:half].tolist(), strict=True)
    )


def test_the_column_that_is_referred_to_is_the_one_that_is_joined() -> None:
    database = _connect("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, code INTEGER UNIQUE);
        CREATE TABLE visits (user INTEGER REFERENCES users(code));
        INSERT INTO users VALUES (1, 3), (2, 1), (3, 2);
        INSERT INTO visits VALUES (1), (3);
    """)
    made = sh.graphs.from_tables(database=database)
    assert _edges(made) == [(3, 1), (4, 0)]


def test_cases_of_names_are_not_told_apart() -> None:
    database = _connect("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
        CREATE TABLE a_visits (User INTEGER REFERENCES Users(ID));
        CREATE TABLE b_visits (User TEXT, FOREIGN KEY (USER) REFERENCES USERS(NAME));
        CREATE TABLE c_visits (User INTEGER REFERENCES Users);
        INSERT INTO users VALUES (1, 'x'), (2, 'y');
        INSERT INTO a_visits VALUES (2); INSERT INTO b_visits VALUES ('y'); INSERT INTO c_visits VALUES (2);
    """)
    made = sh.graphs.from_tables(database=database, strict=True)
    assert not made.skipped_keys
    assert [str(each) for each in made.graph.relations][:3] == [
        "a_visits User users",
        "b_visits User users",
        "c_visits User users",
    ]
    assert {target for _, target in _edges(made)} == {4}


def test_keys_that_cannot_be_followed_are_named() -> None:
    script = """
        CREATE TABLE places (x INTEGER, y INTEGER, PRIMARY KEY (x, y));
        CREATE TABLE users (id INTEGER PRIMARY KEY);
        CREATE TABLE visits (user INTEGER REFERENCES users(id), x INTEGER REFERENCES places, y INTEGER,
            other INTEGER REFERENCES gone(id), FOREIGN KEY (x, y) REFERENCES places(x, y));
        INSERT INTO users VALUES (1); INSERT INTO visits VALUES (1, 1, 1, 1);
    """
    made = sh.graphs.from_tables(database=_connect(script))
    assert _edges(made) == [(1, 0)]
    assert sorted(made.skipped_keys) == [
        "visits (other) -> gone (id): there is no table `gone`",
        "visits (x) -> places (its primary key): the primary key of `places` has 2 columns",
        "visits (x, y) -> places (x, y): it has 2 columns, and keys of one are followed",
    ]
    with pytest.raises(DatabaseError, match="a foreign key makes no edges: visits"):
        sh.graphs.from_tables(database=_connect(script), strict=True)


def test_a_column_of_several_types_has_one() -> None:
    database = _connect("""
        CREATE TABLE notes (id INTEGER PRIMARY KEY, body);
        INSERT INTO notes VALUES (1, x'00ff'), (2, 5), (3, 'text'), (4, NULL);
        CREATE TABLE words (body); INSERT INTO words VALUES (1), ('b'), (2.5);
    """)
    made = sh.graphs.from_tables(database=database)
    assert made.unencoded == {"notes": {"body": "BLOB"}}
    assert made.feature_names["words"] == (
        "body is 1",
        "body is 2.5",
        "body is b",
        "body is another",
    )


def test_rows_may_come_as_something_else() -> None:
    database = _connect(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 2)"
    )
    database.row_factory = lambda cursor, row: {
        each[0]: value for each, value in zip(cursor.description, row, strict=True)
    }
    assert sh.graphs.from_tables(database=database).graph.nodes_per_type == (1,)


def test_text_that_is_none_is_named() -> None:
    database = _connect("CREATE TABLE t (body TEXT); INSERT INTO t VALUES (CAST(x'ff' AS TEXT))")
    with pytest.raises(DatabaseError, match=r"table `t`: .*UTF-8"):
        sh.graphs.from_tables({"t": Table()}, database=database)
