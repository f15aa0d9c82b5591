"""Reports fit a terminal of 80 columns, and never cut a layer's name."""

from __future__ import annotations

from rich.console import Console

from shorthaul.report_table import layer_table

NAME = "resnet.encoder.stages.3.layers.2.shortcut.convolution"


def show(table: object) -> list[str]:
    console = Console(width=80, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_long_names_go_on_in_the_next_line() -> None:
    table = layer_table("one line", "layer", "why", numbers=frozenset({"why"}))
    table.add_row(NAME, "it is a subclass, which may compute something else, so it stays")
    lines = show(table)
    assert lines[0] == "one line"
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in "".join(lines)
    assert lines[4].split()[0] + lines[5].split()[0] == NAME


def test_numbers_are_aligned_right() -> None:
    table = layer_table("sum", "layer", "bytes", numbers=frozenset({"bytes"}))
    table.add_row("one", "5")
    table.add_row("two", "5,000")
    assert [line.split()[-1] for line in show(table)[4:6]] == ["5", "5,000"]
    assert len({len(line) for line in show(table)[4:6]}) == 1
