"""Files of tables that a graph is made of: SQLite, Parquet and Arrow, as they were written and damaged.

What was damaged may be other numbers, which no file vouches for. What comes out is an error of ours or a
graph that has a node for each row, and edges between nodes that there are.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from shorthaul.errors import ShorthaulError
from shorthaul.graphs import DatabaseGraph, Table
from tests.hostile.damage import damage_bytes
from tests.hostile.hostile_files import require_sound
from tests.hostile.hostile_tables import limit_memory

USERS: dict[str, list[Any]] = {
    "id": list(range(3, 33)),
    "age": [each / 2 if each % 4 else None for each in range(30)],
    "country": ["de", "fr", "né", None, "x" * 40] * 6,
    "joined": [1_600_000_000 + 86_400 * each for each in range(30)],
}
ORDERS: dict[str, list[Any]] = {
    "buyer": [each % 37 if each % 9 else None for each in range(60)],
    "amount": list(range(60)),
    "note": ["fast", "very fast", None, "slow slow", "", "naïve"] * 10,
}


def _write_sqlite(place: Path) -> Path:
    path = place / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size = 512")  # more pages, and so more that refers to others
    connection.execute(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL, country TEXT UNIQUE, joined INTEGER)"
    )
    connection.execute(
        "CREATE TABLE orders (buyer INTEGER REFERENCES users(id), amount INTEGER, note TEXT)"
    )
    connection.execute("CREATE INDEX by_note ON orders (note)")
    users = dict(USERS, country=[f"{each} {at}" for at, each in enumerate(USERS["country"])])
    for rows, name, marks in ((users, "users", "?,?,?,?"), (ORDERS, "orders", "?,?,?")):
        connection.executemany(
            f"INSERT INTO {name} VALUES ({marks})", zip(*rows.values(), strict=True)
        )
    connection.commit()
    connection.close()
    return path


def _write_parquet(place: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(ORDERS), place / "orders.parquet", row_group_size=25)
    return place / "orders.parquet"


def _write_arrow(place: Path) -> Path:
    import pyarrow
    import pyarrow.feather

    pyarrow.feather.write_feather(
        pyarrow.table(ORDERS), str(place / "orders.arrow"), compression="uncompressed", chunksize=25
    )
    return place / "orders.arrow"


def _write_stream(place: Path) -> Path:
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.table(ORDERS)
    with pyarrow.ipc.new_stream(str(place / "orders.arrows"), table.schema) as stream:
        stream.write_table(table, max_chunksize=25)
    return place / "orders.arrows"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "sqlite": _write_sqlite,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "arrow stream": _write_stream,
}
KINDS = tuple(WRITERS)


def write_database(kind: str, place: Path) -> Path:
    """A good file in the new folder `place`."""
    place.mkdir(parents=True)
    return WRITERS[kind](place)


def read_hostile(kind: str, path: Path) -> int:
    """Make graphs of what may be damaged; how many came out."""
    import pyarrow

    told = {
        "users": Table(primary_key="id", time="joined"),
        "orders": Table(foreign_keys={"buyer": "users"}),
    }
    asked: list[dict[str, Any]] = [{"database": path}, {"database": path, "tables": told}]
    if kind != "sqlite":
        users = Table(pyarrow.table(USERS), primary_key="id", time="joined")
        asked = [
            {"tables": {"users": users, "orders": Table(path, foreign_keys={"buyer": "users"})}}
        ]
        asked.append({"tables": {"orders": Table(path, time="amount", columns={"note": "text"})}})
    found = 0
    for options in asked:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = sh.graphs.from_tables(**options)
        except ShorthaulError:
            continue
        found += 1
        _require_whole(made)
    return found


def _require_whole(made: DatabaseGraph) -> None:
    require_sound(made.graph)
    counts = dict(zip(made.graph.node_types, made.graph.nodes_per_type, strict=True))
    for name, rows in made.features.items():
        assert rows.shape == (counts[name], len(made.feature_names[name]))
        assert bool(torch.isfinite(rows).all()), name
    for name, keys in made.keys.items():
        assert sorted(keys.values()) == list(range(counts[name]))


def main(kind: str, first: int, stop: int) -> None:
    """Damage and read files of one kind; what is printed last is the seed that did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        good = write_database(kind, Path(folder) / "good")
        for seed in range(first, stop):
            print(f"{kind} {seed}", flush=True)
            path = Path(folder) / f"{seed}{good.suffix}"
            shutil.copy(good, path)
            if seed:
                damage_bytes(path, random.Random(f"{kind} {seed}"))
            found = read_hostile(kind, path)
            assert found or seed, "the good file was refused"
            path.unlink()
    print("finished", flush=True)


if __name__ == "__main__":
    limit_memory()
    for each in sys.argv[3:] or KINDS:
        main(each, int(sys.argv[1]), int(sys.argv[2]))
