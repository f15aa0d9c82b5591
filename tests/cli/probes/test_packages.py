"""Probes of packages, cache and fallbacks."""

from importlib import metadata
from pathlib import Path

import pytest

from shorthaul import fallbacks
from shorthaul.cli.findings import Finding
from shorthaul.cli.probes.packages import (
    describe_extra,
    find_version,
    list_fallbacks,
    look_at_cache,
    look_for_extras,
    look_for_gpu,
    look_for_triton,
    parse_extras,
)
from shorthaul.errors import CacheOwnershipError

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_extras_are_read_from_metadata_as_builders_write_it() -> None:
    assert parse_extras(
        [
            "torch<3,>=2.6",
            "lz4>=4.3; extra == 'compress'",
            "triton>=3.2; (platform_system == 'Linux') and extra == 'gpu'",
            'zstandard>=0.22 ; extra == "compress"',
            "shorthaul[gpu]; extra == 'dev'",
            "pytest>=8; extra == 'dev'",
        ]
    ) == {"compress": ("lz4", "zstandard"), "gpu": ("triton",), "dev": ("pytest",)}


def test_versions_are_found_without_importing() -> None:
    assert find_version("torch") == metadata.version("torch")
    assert find_version("no-such-package") is None


def test_every_extra_of_the_project_is_looked_for() -> None:
    text = PROJECT.read_text().partition("[project.optional-dependencies]\n")[2]
    names = {
        line.partition(" = ")[0] for line in text.partition("\n[")[0].split("\n") if " = " in line
    }
    wanted = {f"shorthaul[{each}]" for each in names if not each.startswith(" ")}
    assert {each.name for each in look_for_extras()} == wanted


def test_an_extra_is_whole_or_says_how_to_get_it() -> None:
    assert describe_extra("compress", {"lz4": "4.4", "zstandard": "0.25"}) == Finding(
        "shorthaul[compress]",
        "ok",
        "lz4 4.4, zstandard 0.25",
        facts={"packages": {"lz4": "4.4", "zstandard": "0.25"}},
    )
    part = describe_extra("compress", {"lz4": "4.4", "zstandard": None})
    assert (part.status, part.value) == ("missing", "zstandard not installed")
    assert part.advice == "pip install 'shorthaul[compress]'"


@pytest.mark.parametrize("look", [look_for_gpu, look_for_triton])
def test_accelerators_are_there_or_missing_but_never_broken(look) -> None:
    found = look()
    assert found.status in ("ok", "missing")
    assert bool(found.advice) == (found.status == "missing")


def test_a_cache_that_is_not_made_yet(cache_directory: Path) -> None:
    assert look_at_cache() == Finding("cache", "ok", f"{cache_directory}, not made yet")


def test_a_cache_is_counted(cache_directory: Path, two_answers) -> None:
    found = look_at_cache()
    assert found.status == "ok"
    assert found.facts["kernels"] == 2
    assert found.facts["kernel_bytes"] == sum(each.size_bytes for each in two_answers)
    assert found.facts["directory"] == str(cache_directory)
    assert ": 2 kernels, " in found.value


def test_a_cache_that_others_may_write_to_is_refused(cache_directory: Path, two_answers) -> None:
    cache_directory.chmod(0o777)
    with pytest.raises(CacheOwnershipError):
        look_at_cache()


def test_fallbacks_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "_taken", {})
    assert list_fallbacks() == ()
    fallbacks.note_fallback("storage engine", "threads", "io_uring is switched off")
    assert list_fallbacks() == (
        Finding("storage engine", "warning", "uses threads: io_uring is switched off"),
    )
