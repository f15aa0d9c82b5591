"""The reference tables know every setting and every error."""

from pathlib import Path

from benchmarks.rendering.reference import list_errors, render_errors, render_pages, render_settings
from shorthaul.settings import Settings


def test_every_setting_has_a_row() -> None:
    lines = render_settings().splitlines()
    assert len(lines) == 2 + len(Settings.all())
    assert (
        "| `cache_limit_bytes` | `SHORTHAUL_CACHE_LIMIT` | bytes such as '2GiB' | 2.0 GiB | "
        "size above which the least recently used kernels are removed |"
    ) in lines
    assert all(line.count("|") == 6 for line in lines)


def test_defaults_hold_on_every_machine(monkeypatch, tmp_path) -> None:
    before = render_settings()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SHORTHAUL_ENGINE", "memory")
    assert render_settings() == before
    assert str(tmp_path) not in before


def test_every_error_has_a_row_with_the_builtins_that_catch_it() -> None:
    lines = render_errors().splitlines()
    assert len(lines) == 2 + len(list_errors())
    assert (
        "| `StorageError` | `OSError` | A read or write failed; names the file, the range and "
        "the errno. |"
    ) in lines
    assert any(line.startswith("| `ShortReadError` | `OSError`, `EOFError` |") for line in lines)


def test_every_page_has_a_row_with_its_first_sentence(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Index\n\nWords.\n")
    (tmp_path / "rows.md").write_text("# Rows\n\nWhere rows\nlie. And more.\n\n## Use\n")
    (tmp_path / "meter.md").write_text("# The meter\n\nCounts bytes: all of them\n")
    assert render_pages(tmp_path) == (
        "| page | content |\n"
        "| --- | --- |\n"
        "| [The meter](meter.md) | Counts bytes: all of them |\n"
        "| [Rows](rows.md) | Where rows lie. |"
    )
