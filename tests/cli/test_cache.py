"""`shorthaul cache`: what is there, in words and JSON, and removing it."""

import json
import os
import time
from pathlib import Path

import pytest

from shorthaul.cli.cache import KINDS, find_kernels, format_age, read_contents
from shorthaul.jit import CacheEntry, Candidate, autotune
from shorthaul.jit.python_module import load_module

DIGESTS = ("aa11" + "0" * 60, "aa22" + "0" * 60, "bb33" + "0" * 60)
ENTRIES = tuple(
    CacheEntry(name, digest, Path("/c") / digest, 1000, "", 0.0, 0.5)
    for name, digest in zip(("gather", "scatter", "gather"), DIGESTS, strict=True)
)


@pytest.fixture
def tuned() -> str:
    def fail() -> None:
        raise ValueError("too wide")

    candidates = [Candidate("narrow", lambda: None), Candidate("wide", lambda: None)]
    autotune("gather 64", [*candidates, Candidate("widest", fail)])
    return "gather 64"


@pytest.fixture
def module(cache_directory: Path) -> Path:
    loaded = load_module("answer", "ANSWER = 42\n")
    return Path(loaded.__file__)


@pytest.fixture
def dataset(cache_directory: Path) -> Path:
    path = cache_directory / "datasets" / "python_graph-0123.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 2048)
    return path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("gather", [0, 2]),
        ("gather_aa110000", [0]),
        ("aa", [0, 1]),
        ("bb33", [2]),
        (DIGESTS[1], [1]),
        ("gath", []),
        ("cc", []),
    ],
)
def test_kernels_are_found_by_name_and_by_digest(wanted: str, found: list[int]) -> None:
    assert find_kernels(ENTRIES, wanted) == [ENTRIES[index] for index in found]


def test_an_empty_cache(shorthaul, cache_directory: Path) -> None:
    shown = shorthaul("cache", "list")
    assert shown.exit_code == 0
    assert shown.output == (
        f"{cache_directory}\n\nkernels (0 B of 2.0 GiB): none\n\n"
        "generated modules (0 B): none\n\ntuning choices: none\n\n"
        "data sets (0 B): none\n"
    )
    assert not cache_directory.exists()  # looking makes nothing


def test_everything_is_listed(
    shorthaul, two_answers, tuned: str, dataset: Path, module: Path
) -> None:
    shown = shorthaul("cache", "list").output
    for entry in two_answers:
        assert entry.digest[:8] in shown
    assert tuned in shown
    assert dataset.stem in shown
    assert "data sets (2.0 KiB)" in shown
    assert "generated modules (12 B)" in shown
    assert module.stem in shown


def test_json(
    shorthaul, cache_directory: Path, two_answers, tuned: str, dataset: Path, module: Path
) -> None:
    document = json.loads(shorthaul("cache", "list", "--json").stdout)
    assert set(document) == {"directory", "limit_bytes", *KINDS}
    assert document["directory"] == str(cache_directory)
    assert {each["digest"] for each in document["kernels"]} == {each.digest for each in two_answers}
    assert set(document["kernels"][0]) == {
        *("name", "digest", "size_bytes", "used_at", "compile_seconds", "directory"),
    }
    (choice,) = document["tuning"]
    assert set(choice) == {"key", "choice", "seconds", "failures"}
    assert choice["choice"] in choice["seconds"]
    assert document["datasets"] == [{"name": dataset.stem, "size_bytes": 2048}]
    assert document["modules"] == [{"name": module.stem, "size_bytes": 12}]


def test_a_kernel_is_shown_with_its_command(shorthaul, two_answers) -> None:
    first, second = two_answers
    shown = shorthaul("cache", "show", first.digest[:12]).output
    assert shown.startswith(f"answer_{first.digest[:8]}\n  digest     {first.digest}\n")
    assert f"  source     {first.directory / 'kernel.cpp'}\n" in shown
    assert "-march=native" in shown
    assert second.digest not in shown


def test_a_name_shows_all_that_have_it(shorthaul, two_answers) -> None:
    shown = json.loads(shorthaul("cache", "show", "answer", "--json").stdout)
    assert {each["digest"] for each in shown} == {each.digest for each in two_answers}


def test_a_tuning_choice_is_shown_with_all_candidates(shorthaul, tuned: str) -> None:
    shown = shorthaul("cache", "show", tuned).output
    assert shown.startswith(f"{tuned}: ")
    assert "  narrow\n" in shown
    assert "  wide\n" in shown
    assert shown.endswith("      failed  widest (ValueError: too wide)\n")
    assert set(json.loads(shorthaul("cache", "show", tuned, "--json").stdout)["seconds"]) == {
        "narrow",
        "wide",
    }


def test_what_is_not_there_is_an_error_that_lists_what_is(
    shorthaul, cache_directory: Path, two_answers
) -> None:
    shown = shorthaul("cache", "show", "anser")
    assert shown.exit_code == 1
    assert shown.stderr == (
        f"Error: no kernel in {cache_directory} has the name or the digest 'anser'.\n"
        "  There are answer. `shorthaul cache list` shows their digests.\n"
    )


def test_clearing_asks_first(
    shorthaul, two_answers, tuned: str, dataset: Path, module: Path
) -> None:
    refused = shorthaul("cache", "clear", typed="n\n")
    assert refused.exit_code == 1
    assert refused.stderr == "Error: nothing was removed.\n"
    assert refused.output.startswith(
        "Remove 2 kernels, 1 generated modules, 1 tuning choices, 1 data sets ("
    )
    assert len(read_contents().kernels) == 2
    agreed = shorthaul("cache", "clear", typed="y\n")
    assert agreed.exit_code == 0
    assert (
        "Removed 2 kernels, 1 generated modules, 1 tuning choices, 1 data sets (" in agreed.output
    )
    contents = read_contents()
    assert not any(getattr(contents, kind) for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_can_be_cleared_without_being_asked(
    shorthaul, two_answers, tuned: str, dataset: Path, module: Path, kind: str
) -> None:
    before = read_contents()
    assert shorthaul("cache", "clear", "--yes", "--only", kind).exit_code == 0
    after = read_contents()
    for each in KINDS:
        assert bool(getattr(before, each))
        assert bool(getattr(after, each)) == (each != kind)


def test_a_cache_of_somebody_else_is_an_error(shorthaul, cache_directory: Path) -> None:
    (cache_directory / "kernels").mkdir(parents=True)
    cache_directory.chmod(0o777)
    shown = shorthaul("cache", "clear", "--yes")
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"Error: the kernel cache {cache_directory} is refused")


def test_ages_as_people_say_them() -> None:
    minute, hour, day = 60, 3600, 86_400
    assert [format_age(each) for each in (-1, 0, 59.4, minute, hour - 1, hour, 47 * hour)] == [
        *("0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "47 h"),
    ]
    assert format_age(2 * day) == "2 days"


def test_the_most_recently_used_comes_first(two_answers) -> None:

    first, second = two_answers
    now = time.time()
    os.utime(first.directory / "entry.json", (now, now))
    os.utime(second.directory / "entry.json", (now - 100, now - 100))
    assert [each.digest for each in read_contents().kernels] == [first.digest, second.digest]
