"""What `shorthaul doctor` finds: plain values first, words and colors after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shorthaul.errors import ShorthaulError

# ok: as good as shorthaul can use it.  warning: works, but slower or by a second-best way.
# missing: not installed, and not needed for the rest.  broken: shorthaul cannot do its work here.
Status = Literal["ok", "warning", "missing", "broken"]

_COLORS: Mapping[Status, str] = {
    "ok": "green",
    "warning": "yellow",
    "missing": "blue",
    "broken": "bold red",
}


@dataclass(frozen=True)
class Finding:
    """One thing about this machine: how it is, and what to do about it."""

    name: str
    status: Status
    value: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)  # the same as numbers, for machines


@dataclass(frozen=True)
class Probe:
    """How to find something out. `look` may fail: that, too, is a finding."""

    section: str
    name: str
    look: Callable[[], Finding | Sequence[Finding]]
    is_measurement: bool = False  # takes seconds; `--quick` leaves it out
    is_essential: bool = False  # when it fails, shorthaul cannot do its work here


@dataclass(frozen=True)
class Section:
    """The findings of one part of the machine."""

    title: str
    findings: tuple[Finding, ...]


def run_probe(probe: Probe) -> tuple[Finding, ...]:
    """What `probe` finds; when it fails, the failure as a finding."""
    try:
        found = probe.look()
    except Exception as error:
        return (describe_failure(probe, error),)
    return (found,) if isinstance(found, Finding) else tuple(found)


def describe_failure(probe: Probe, error: Exception) -> Finding:
    """A failed probe as a finding: an error's first line says what, the others what to do."""
    first, _, advice = str(error).partition("\n")
    value = first if isinstance(error, ShorthaulError) else f"{type(error).__name__}: {first}"
    return Finding(probe.name, "broken" if probe.is_essential else "warning", value, advice.strip())


def collect_sections(
    probes: Iterable[Probe], on_progress: Callable[[str], None]
) -> tuple[Section, ...]:
    """Run every probe, in order; `on_progress` hears the name of each before it runs."""
    found: dict[str, list[Finding]] = {}
    for probe in probes:
        on_progress(probe.name)
        found.setdefault(probe.section, []).extend(run_probe(probe))
    return tuple(Section(title, tuple(findings)) for title, findings in found.items() if findings)


def is_working(sections: Iterable[Section]) -> bool:
    """Whether kernels and storage work here, be it by a second-best way."""
    return all(each.status != "broken" for section in sections for each in section.findings)


def describe_sections(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """The findings as plain values, for JSON."""
    return [
        {
            "section": section.title,
            "name": each.name,
            "status": each.status,
            "value": each.value,
            "advice": each.advice,
            "facts": dict(each.facts),
        }
        for section in sections
        for each in section.findings
    ]


def render_sections(sections: Sequence[Section]) -> RenderableType:
    """The findings for people: a block per section, advice under what it is about, each once."""
    names = [each.name for section in sections for each in section.findings]
    name_width = max(map(len, names), default=0)
    given: set[str] = set()
    return Group(*(_render_section(each, name_width, given) for each in sections))


def _render_section(section: Section, name_width: int, given: set[str]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=len("warning"))
    table.add_column(width=name_width)
    table.add_column(overflow="fold")
    for each in section.findings:
        table.add_row(Text(each.status, _COLORS[each.status]), Text(each.name), Text(each.value))
        for line in each.advice.splitlines() if each.advice not in given else ():
            table.add_row("", "", Text(f"> {line.strip()}", "dim"))
        given.add(each.advice)
    return Group(Text(section.title, "bold"), table, "")
