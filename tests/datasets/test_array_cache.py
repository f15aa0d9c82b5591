"""Built once, read afterwards, and never trusted when damaged."""

from pathlib import Path

import numpy as np
import pytest

from shorthaul.datasets.array_cache import Arrays, cached_arrays
from shorthaul.fallbacks import taken_fallbacks
from shorthaul.meter import meter
from shorthaul.settings import settings


class Builder:
    """Makes the same arrays each time and counts how often it had to."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Arrays:
        self.times += 1
        return {"rows": np.arange(12, dtype=np.int64).reshape(3, 4), "none": np.empty(0, np.uint8)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fetch(directory: Path, build: Builder, **key: object) -> Arrays:
    with settings.override(cache_directory=directory):
        return cached_arrays("sample", key or {"format": 1}, build)


def require_equal(found: Arrays) -> None:
    expected = Builder()()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_the_second_call_reads(directory: Path) -> None:
    build = Builder()
    with meter() as first:
        require_equal(fetch(directory, build))
    with meter() as second:
        require_equal(fetch(directory, build))
    assert build.times == 1
    (entry,) = (directory / "datasets").iterdir()
    size = entry.stat().st_size
    assert (first.written_bytes, first.read_bytes) == (size, 0)
    assert (second.written_bytes, second.read_bytes) == (0, size)
    assert directory.stat().st_mode & 0o077 == 0
    assert entry.stat().st_mode & 0o077 == 0


def test_another_key_is_another_entry(directory: Path) -> None:
    build = Builder()
    fetch(directory, build, format=1, limit=None)
    fetch(directory, build, format=1, limit=10)
    fetch(directory, build, format=2, limit=10)
    assert build.times == 3
    fetch(directory, build, format=1, limit=10)
    assert build.times == 3


def test_another_python_is_another_entry(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Builder()
    fetch(directory, build)
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    fetch(directory, build)
    assert build.times == 2


def damage_every_way(entry: Path) -> dict[str, bytes]:
    whole = entry.read_bytes()
    place = whole.index(np.arange(12, dtype=np.int64).tobytes())
    flipped = bytearray(whole)
    flipped[place + 5] ^= 4
    return {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "cut by one": whole[:-1],
        "one bit flipped": bytes(flipped),
        "not an archive": b"hello" * 100,
        "zeros": bytes(len(whole)),
        "a single array": whole[whole.index(b"\x93NUMPY") :][:300],
    }


@pytest.mark.parametrize(
    "kind",
    ["empty", "cut", "cut by one", "one bit flipped", "not an archive", "zeros", "a single array"],
)
def test_a_damaged_entry_is_built_again(directory: Path, kind: str) -> None:
    build = Builder()
    fetch(directory, build)
    (entry,) = (directory / "datasets").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage_every_way(entry)[kind])
    require_equal(fetch(directory, build))
    assert build.times == 2
    assert len(entry.read_bytes()) == len(whole)
    require_equal(fetch(directory, build))
    assert build.times == 2


class Bomb:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickled_entry_is_never_unpickled(directory: Path, tmp_path: Path) -> None:
    build = Builder()
    fetch(directory, build)
    (entry,) = (directory / "datasets").iterdir()
    target = tmp_path / "exploded"
    rows = np.array([Bomb(target)], dtype=object)
    np.savez(entry, rows=rows)
    with np.load(entry, allow_pickle=True) as archive:
        archive["rows"]
    assert target.exists(), "the bomb works"
    target.unlink()
    require_equal(fetch(directory, build))
    assert build.times == 2
    assert not target.exists()


def test_an_entry_under_the_wrong_name_is_not_taken(directory: Path) -> None:
    build = Builder()
    fetch(directory, build, format=1)
    (first,) = (directory / "datasets").iterdir()
    fetch(directory, build, format=2)
    (second,) = set((directory / "datasets").iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    fetch(directory, build, format=2)
    assert build.times == 3


def test_without_a_place_to_write_it_still_works_and_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    build = Builder()
    require_equal(fetch(blocked / "cache", build))
    require_equal(fetch(blocked / "cache", build))
    assert build.times == 2
    notes = [each for each in taken_fallbacks() if str(blocked) in each.reason]
    assert [each.what for each in notes] == ["data set cache"]


def test_a_write_that_fails_leaves_nothing_behind(directory: Path) -> None:
    class Interrupted(Builder):
        def __call__(self) -> Arrays:
            return {"rows": Unwritable()}  # type: ignore[dict-item]

    class Unwritable:
        def __array__(self, *arguments: object, **options: object) -> np.ndarray:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(directory, Interrupted())
    assert list((directory / "datasets").iterdir()) == []
