"""Findings: failures are findings too; words and JSON from the same values."""

import io

import pytest
from rich.console import Console

from shorthaul.cli.findings import (
    Finding,
    Probe,
    Section,
    collect_sections,
    describe_sections,
    is_working,
    render_sections,
    run_probe,
)
from shorthaul.errors import NoCompilerError

SECTIONS = (
    Section(
        "Kernels",
        (
            Finding("compiler", "ok", "g++ 12", facts={"version": "12"}),
            Finding("peak", "warning", "slow [here]", "look\n  again"),
            Finding("memory", "warning", "slow there", "look\n  again"),
        ),
    ),
    Section("Storage", (Finding("engine", "missing", "none", "pip install 'shorthaul[gpu]'"),)),
)

GOLDEN = """\
Kernels
ok       compiler  g++ 12
warning  peak      slow [here]
                   > look
                   > again
warning  memory    slow there

Storage
missing  engine    none
                   > pip install 'shorthaul[gpu]'

"""


def test_the_whole_text() -> None:
    shown = io.StringIO()
    Console(file=shown, width=80, highlight=False).print(render_sections(SECTIONS))
    assert "\n".join(line.rstrip() for line in shown.getvalue().split("\n")) == GOLDEN


def test_plain_values() -> None:
    assert describe_sections(SECTIONS[:1])[0] == {
        "section": "Kernels",
        "name": "compiler",
        "status": "ok",
        "value": "g++ 12",
        "advice": "",
        "facts": {"version": "12"},
    }


@pytest.mark.parametrize(
    ("status", "works"), [("ok", True), ("warning", True), ("missing", True), ("broken", False)]
)
def test_only_what_is_broken_keeps_it_from_working(status, works: bool) -> None:
    assert is_working([*SECTIONS, Section("x", (Finding("y", status, "z"),))]) == works


def fail() -> Finding:
    raise NoCompilerError(["g++"])


@pytest.mark.parametrize(("is_essential", "status"), [(True, "broken"), (False, "warning")])
def test_a_probe_that_fails_is_a_finding(is_essential: bool, status: str) -> None:
    (found,) = run_probe(Probe("Kernels", "compiler", fail, is_essential=is_essential))
    assert (found.name, found.status) == ("compiler", status)
    assert found.value == "no C++ compiler was found (looked for: g++)."
    assert found.advice.startswith("Install g++ or clang++")


def test_an_error_that_nobody_expected_shows_its_kind() -> None:
    (found,) = run_probe(Probe("x", "y", lambda: Finding("y", "ok", str(1 // 0))))
    assert found == Finding("y", "warning", "ZeroDivisionError: integer division or modulo by zero")


def test_probes_run_in_order_and_empty_sections_vanish() -> None:
    heard: list[str] = []
    one, two = Finding("one", "ok", "1"), Finding("two", "ok", "2")
    probes = (
        Probe("first", "one", lambda: one),
        Probe("none", "nothing", lambda: ()),
        Probe("second", "many", lambda: (two, two)),
        Probe("first", "two", lambda: two),
    )
    assert collect_sections(probes, heard.append) == (
        Section("first", (one, two)),
        Section("second", (two, two)),
    )
    assert heard == ["one", "nothing", "many", "two"]
