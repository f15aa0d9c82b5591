"""Who takes part, and who is named when something fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shorthaul.distributed.ranks.faults import FaultFinder
from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.world import (
    Peer,
    World,
    describe_parts,
    describe_self,
    find_world,
)
from shorthaul.errors import ExchangeError, PeerError


class MemoryStore:
    """A store that ranks of one test share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(each in self.values for each in keys)


class LostStore(MemoryStore):
    """One whose server is gone."""

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Broken pipe")


class HangingStore(MemoryStore):
    """One whose server is stopped: no call comes back."""

    def set(self, key: str, value: str) -> None:
        threading.Event().wait()


def peers(count: int, process: int = 0) -> list[Peer]:
    space = describe_self(0, "", None).process_space
    number = process or os.getpid()
    return [Peer(rank, f"part {rank}", "here", number, space, "") for rank in range(count)]


def explain(store: MemoryStore, known: list[Peer], text: str = "Timed out") -> ExchangeError:
    return FaultFinder(store, known, 0, 0.05, "test").explain(RuntimeError(text), "rows")


def test_a_process_alone_is_rank_0() -> None:
    assert find_world() == World(0, 1)
    assert describe_parts(1, 2) == "part 1"
    assert describe_parts(1, 4) == "parts 1 to 3"


def test_ranks_share_a_machine_where_they_read_the_same_file(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for each in (one, other):
        each.write_text("")
    mine = [describe_self(0, "", path).machine for path in (one, one, other, None)]
    assert mine[0] == mine[1]
    assert len(set(mine)) == 3


def test_a_process_that_has_ended_is_seen() -> None:
    alive, gone, elsewhere = *peers(1), *peers(1, 2**22 + 1), Peer(0, "", "", 2**22 + 1, "x", "")
    assert not alive.is_gone(alive)
    assert gone.is_gone(alive)
    assert not elsewhere.is_gone(alive)


def test_silent_ranks_are_blamed() -> None:
    store = MemoryStore()
    known = peers(3)
    FaultFinder(store, known, 2, 0.05, "test").explain(RuntimeError(""), "rows")
    error = explain(store, known)
    assert len(error.blamed) == 1
    assert error.blamed[0].startswith("rank 1 (part 1, ")
    assert "nothing came within 0.05 s" in str(error)
    assert "larger timeout_seconds" in str(error)


def test_a_rank_that_confesses_is_blamed_alone() -> None:
    store = MemoryStore()
    known = peers(3)
    FaultFinder(store, known, 2, 0.05, "test").confess(MemoryError("too much"), "rows")
    error = explain(store, known)
    assert isinstance(error, PeerError)
    assert len(error.blamed) == 1
    assert "rank 2 (part 2" in error.blamed[0]
    assert "MemoryError: too much" in error.blamed[0]


def test_a_cut_network_is_told_from_a_rank_that_died() -> None:
    store = MemoryStore()
    known = peers(2)
    FaultFinder(store, known, 1, 0.05, "test").explain(RuntimeError(""), "rows of batch 7")
    error = explain(store, known, "Connection closed by peer\nand more")
    assert "a connection between ranks was lost" in str(error)
    assert "rank 1 (part 1" in error.blamed[0]
    assert "saw it rows of batch 7" in error.blamed[0]
    assert "network between them was cut" in str(error)
    assert str(error).endswith("torch said: Connection closed by peer")


@pytest.mark.parametrize("store", [LostStore, HangingStore])
def test_a_store_that_does_not_answer_is_named_too(store: type[MemoryStore]) -> None:
    error = explain(store(), peers(3))
    assert [each[:6] for each in error.blamed] == ["rank 1", "rank 2"]
    assert "torch's store did not answer" in str(error)
    assert "torch's store" not in str(explain(MemoryStore(), peers(3)))


def test_an_error_is_not_kept_back_by_a_store_that_hangs() -> None:
    FaultFinder(HangingStore(), peers(2), 0, 0.05, "test").confess(MemoryError(), "rows")


def test_a_line_of_one_process_works_at_once_and_keeps_errors() -> None:
    line = Line(World(0, 1))
    assert line.run("nothing", lambda wire: wire.gather_numbers([3, 4])) == [[3, 4]]
    with pytest.raises(ZeroDivisionError):
        line.run("nothing", lambda _: 1 // 0)
    assert line.run("nothing", lambda _: 5) == 5
    line.close()
