from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shorthaul.errors import SpoolFullError, StorageError
from shorthaul.offload.drive import spool as spool_module
from shorthaul.offload.drive.spool import (
    BLOCK_BYTES,
    GROWTH_BYTES,
    RESERVE_BYTES,
    FreeExtents,
    Spool,
    SpoolSet,
    read_file_system,
)


class ExtentMachine(RuleBasedStateMachine):
    """Free and taken ranges always partition the file, and neighbors are merged."""

    TOTAL = 64

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeExtents()
        self.free.give(0, self.TOTAL)
        self.taken: list[tuple[int, int]] = []

    @rule(length=st.integers(1, 20))
    def take(self, length: int) -> None:
        start = self.free.take(length)
        if start is None:
            assert all(size < length for size in self.free._lengths.values())
        else:
            self.taken.append((start, length))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        start, length = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.free.give(start, length)

    @invariant()
    def nothing_is_owned_twice_and_nothing_is_lost(self) -> None:
        ranges = [*self.taken, *self.free._lengths.items()]
        covered = sorted(at for start, size in ranges for at in range(start, start + size))
        assert covered == list(range(self.TOTAL))
        ends = {start + size for start, size in self.free._lengths.items()}
        assert not ends & set(self.free._starts)
        assert self.free._starts == sorted(self.free._lengths)


TestExtents = ExtentMachine.TestCase
TestExtents.settings = hypothesis_settings(max_examples=60, deadline=None)


def test_the_smallest_range_that_fits_is_taken():
    free = FreeExtents()
    for start, length in ((0, 10), (20, 4), (40, 6)):
        free.give(start, length)
    assert free.take(4) == 20
    assert free.take(5) == 40
    assert free.take(11) is None


def test_giving_a_range_twice_is_noticed():
    free = FreeExtents()
    free.give(0, 10)
    with pytest.raises(ValueError, match="already free"):
        free.give(5, 10)
    with pytest.raises(ValueError, match="already free"):
        free.give(0, 1)


def test_slots_are_whole_blocks_and_reused(tmp_path):
    spool = Spool(tmp_path)
    first, second = spool.take(1), spool.take(BLOCK_BYTES + 1)
    assert (first.length_bytes, second.length_bytes) == (BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert spool.used_bytes == 3 * BLOCK_BYTES
    spool.give(first)
    assert spool.take(100).offset_bytes == first.offset_bytes
    spool.close()


def test_a_full_file_system_says_how_much_is_needed_and_there(tmp_path, monkeypatch):
    free_bytes = RESERVE_BYTES + 10 * BLOCK_BYTES
    monkeypatch.setattr(Spool, "_free_bytes", lambda self: free_bytes)
    spool = Spool(tmp_path)
    slot = spool.take(10 * BLOCK_BYTES)
    free_bytes = RESERVE_BYTES // 2
    with pytest.raises(SpoolFullError) as caught:
        spool.take(5 * BLOCK_BYTES)
    assert str(caught.value).splitlines()[0] == (
        "activations need 20.0 KiB (20,480 bytes) in one piece besides the 40.0 KiB that they use, "
        f"but {tmp_path} has 32.0 MiB (33,554,432 bytes) free, of which 64.0 MiB are left for "
        "others."
    )
    spool.give(slot)
    spool.close()


def test_a_file_system_that_gives_less_than_it_shows_is_quoted(tmp_path, monkeypatch):
    spool = Spool(tmp_path)

    def refuse(length_bytes):
        raise StorageError("reserve", tmp_path, 0, length_bytes, errno.EDQUOT)

    monkeypatch.setattr(spool.file, "reserve", refuse)
    with pytest.raises(SpoolFullError, match="does not give them: Disk quota exceeded"):
        spool.take(BLOCK_BYTES)
    spool.close()


def test_a_spool_goes_on_where_the_process_goes_and_when_its_directory_goes(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    spool = Spool(Path("scratch"))
    monkeypatch.chdir("/")
    first = spool.take(BLOCK_BYTES)
    (tmp_path / "scratch").rmdir()
    second = spool.take(2 * GROWTH_BYTES)
    assert first.file is second.file
    assert spool.directory == tmp_path / "scratch"
    spool.close()


def test_a_fork_freezes_what_both_sides_hold(tmp_path):
    spool = Spool(tmp_path)
    first, second = spool.take(1), spool.take(1)
    spool.prepare_for_fork()
    third = spool.take(1)
    assert third.file is not first.file
    assert spool.used_bytes == 3 * BLOCK_BYTES
    assert spool.holds(first)
    spool.give(first)
    assert not first.file.is_closed
    spool.prepare_for_fork()
    spool.start_afresh()  # both files hold slots: nothing to leave to the parent
    spool.give(second)
    assert second.file.is_closed
    assert not spool.holds(second)
    assert not third.file.is_closed
    spool.close()
    assert third.file.is_closed
    with pytest.raises(ValueError, match="is closed"):
        spool.take(1)


def test_an_empty_file_stays_with_the_parent(tmp_path):
    parent = Spool(tmp_path)
    file = parent.file
    parent.give(parent.take(1))
    parent.prepare_for_fork()
    assert parent.take(1).file is file
    child = Spool(tmp_path)
    left = child.file
    child.prepare_for_fork()
    child.start_afresh()
    assert left.is_closed
    assert child.reserved_bytes == 0
    assert child.take(1).file is not left
    for spool in (parent, child):
        spool.close()


def test_a_directory_that_is_gone_after_a_fork_is_named(tmp_path):
    (tmp_path / "scratch").mkdir()
    spool = Spool(tmp_path / "scratch")
    spool.take(1)
    (tmp_path / "scratch").rmdir()
    spool.prepare_for_fork()
    with pytest.raises(StorageError, match=r"open of .*scratch failed.*ENOENT") as caught:
        spool.take(1)
    assert "was forked while activations were on disk" in str(caught.value)
    spool.close()


def test_a_spool_grows_in_large_steps_while_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "GROWTH_BYTES", 8 * BLOCK_BYTES)
    spool = Spool(tmp_path)
    spool.take(1)
    assert spool.reserved_bytes == 8 * BLOCK_BYTES
    spool.take(9 * BLOCK_BYTES)
    assert spool.reserved_bytes == 17 * BLOCK_BYTES
    assert spool.file.size_bytes == 17 * BLOCK_BYTES
    spool.close()


def test_turns_skip_a_full_drive_and_stripes_take_nothing_from_it(tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    turns = SpoolSet(places)
    turns.spools[0]._free_bytes = lambda: 0  # type: ignore[method-assign]
    files = {turns.take(BLOCK_BYTES)[0].file for _ in range(3)}
    assert files == {turns.spools[1].file}
    turns.close()
    stripes = SpoolSet(places, spread="stripes")
    stripes.spools[1]._free_bytes = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(SpoolFullError):
        stripes.take(4 * BLOCK_BYTES)
    assert stripes.used_bytes == 0
    stripes.close()


def test_stripes_cover_the_length_even_when_blocks_do_not_divide(tmp_path):
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
    stripes = SpoolSet(places, spread="stripes")
    slots = stripes.take(4 * BLOCK_BYTES + 1)
    assert sum(slot.length_bytes for slot in slots) == 5 * BLOCK_BYTES
    assert len(stripes.take(1)) == 1
    stripes.give(slots)
    assert stripes.used_bytes == BLOCK_BYTES
    stripes.close()


def test_the_file_system_of_a_directory_is_known():
    assert read_file_system(Path("/proc")) == "proc"
    assert read_file_system(Path("/dev/shm")) == "tmpfs"
