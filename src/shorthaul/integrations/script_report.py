"""What `shorthaul run` did with a script, for people and for machines."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_page import format_page
from shorthaul.meter import DISK_TRIAL, Meter
from shorthaul.units import format_bytes, format_seconds

if TYPE_CHECKING:  # it needs torch
    from shorthaul.integrations.script_models import ScriptModels


@dataclass(frozen=True)
class ScriptReport:
    """The end of a run; every value is a plain one, so it can be written as JSON."""

    command: list[str]
    asked: dict[str, Any]
    seconds: float
    peak_resident_bytes: int | None
    written_bytes: int  # these two without what was moved to see how fast the disk is
    read_bytes: int
    disk_trial_bytes: int
    backward_passes: int
    models: list[dict[str, Any]]
    memory: dict[str, int] | None  # its shares, where it made a budget
    offload: dict[str, Any] | None
    plan: dict[str, Any] | None  # the last one, where one was made
    meter: dict[str, Any]
    resident: list[tuple[float, int]]  # over time, where the process was looked at
    step_seconds: list[float]  # from one training call to the next
    held: dict[str, Any] | None  # over one step: bytes of tensors by module

    @classmethod
    def make(
        cls, wishes: RunWishes, models: ScriptModels | None, counted: Meter, seconds: float
    ) -> ScriptReport:
        """Gather what is known at the end."""
        if models is not None:
            models.note_choices()
        offload = None if models is None else models.offload
        plan = None
        if offload is not None:
            from shorthaul.advice.holding.chosen_plan import ChosenPlan

            plan = ChosenPlan.make(offload)
        shares = None if models is None else models.shares
        timeline = None if models is None else models.timeline
        return cls(
            command=list(sys.orig_argv[1:]),
            asked=asdict(wishes),
            seconds=seconds,
            peak_resident_bytes=counted.peak_resident_bytes,
            written_bytes=counted.written_bytes
            - counted.bytes_between(target="disk", why=DISK_TRIAL),
            read_bytes=counted.read_bytes - counted.bytes_between(source="disk", why=DISK_TRIAL),
            disk_trial_bytes=counted.bytes_between(why=DISK_TRIAL),
            backward_passes=0 if models is None else models.backward_passes,
            models=[] if models is None else [asdict(each) for each in models.seen],
            memory=None
            if shares is None
            else asdict(shares) | {"budget_bytes": shares.budget_bytes},
            offload=None if offload is None else offload.report().to_dict(),
            plan=None if plan is None else plan.to_dict(),
            meter=counted.to_dict(),
            resident=[] if timeline is None else timeline.resident,
            step_seconds=[] if timeline is None else timeline.step_seconds,
            held=None if timeline is None else timeline.held,
        )

    def write(self, path: Path) -> None:
        """Write a page, or JSON where the name says so."""
        if is_page(path.name):
            self.write_page(path)
        else:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def write_page(self, target: Path) -> None:
        """Write an HTML page, whatever the file is called."""
        target.write_text(format_page(asdict(self), self.describe()), encoding="utf-8")

    def describe(self) -> str:
        """A line that sums up, then a line for each thing that was changed or left."""
        peak = self.peak_resident_bytes
        rows = [
            ("backward passes", f"{self.backward_passes:,}"),
            ("wall time", format_seconds(self.seconds)),
            ("peak resident memory", "not known here" if peak is None else format_bytes(peak)),
            ("written to disk", format_bytes(self.written_bytes)),
            ("read from disk", format_bytes(self.read_bytes)),
        ]
        if self.disk_trial_bytes:
            trial = f"{format_bytes(self.disk_trial_bytes)} written and read, once"
            rows.append(("to measure the disk", trial))
        if self.offload is not None:
            counts = self.offload["counts"]
            live = f"{format_bytes(counts['peak_live_bytes'])} at most"
            rows.append(
                ("live activations", f"{live}, {format_bytes(counts['peak_saved_bytes'])} if kept")
            )
        lines = [self._verdict(), *(f"  {what:<22}{amount}" for what, amount in rows)]
        if self.plan is not None:
            from shorthaul.advice.holding.chosen_plan import ChosenPlan

            for line in ChosenPlan(**self.plan).describe():
                lines += _wrap(line)
        for model in self.models:
            for verb in ("changed", "left"):
                for why, times in Counter(model[verb].values()).most_common():
                    first = next(name for name, each in model[verb].items() if each == why)
                    which = first if times == 1 else f"{first} and {times - 1} more"
                    lines += _wrap(f"{model['name']}: {verb} {which}: {why}")
        return "\n".join(lines)

    def _verdict(self) -> str:
        changes = self.asked["replaces_convs"] or self.asked["accelerates"]
        if not self.models:
            verb = "called" if changes else "trained"
            return f"shorthaul run: no model was {verb}, so nothing was changed"
        changed = sum(len(model["changed"]) for model in self.models)
        done = self._offloaded()
        if changed or changes or not done:
            done.append(f"{changed:,} layers changed")
        names = ", ".join(model["name"] for model in self.models)
        return f"shorthaul run: {names}: {', '.join(done)}"

    def _offloaded(self) -> list[str]:
        if not self.asked["offloads"]:
            return []
        if self.offload is None:
            return ["nothing to offload, as no model was trained"]
        counts = self.offload["counts"]
        done = []
        if counts["offloaded"] or counts["kept_and_written"]:
            done.append("activations offloaded")
        if counts["recomputed_regions"]:
            done.append("blocks computed again")
        return done or ["no activation had to leave memory"]


def is_page(path: str) -> bool:
    """Whether a report of that name is a page.

    >>> is_page("run.html"), is_page("run.json")
    (True, False)
    """
    return path.lower().endswith((".html", ".htm"))


def _wrap(text: str) -> list[str]:
    """Lines of 80 columns; a layer's name is never cut."""
    return textwrap.wrap(
        text,
        80,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
