"""Flash wears out by being written: what a drive is rated for, and how much of it we have used.

`Endurance` is the rating and the limits, as given by the user. `WriteLedger` counts, in a small file
per drive, what shorthaul has written to it, by all processes and across runs.

>>> endurance = Endurance.parse({"tbw": "600TB", "daily": "2TB"})
>>> round(endurance.days_left(bytes_per_day=5_800_000_000_000))
103
>>> endurance.bytes_left_today(written_today_bytes=1_500_000_000_000)
500000000000

| knob               | meaning                                                                     |
| ------------------ | --------------------------------------------------------------------------- |
| `tbw`              | bytes that may be written over the drive's life, from its data sheet         |
| `dwpd`             | or: whole-drive writes per day, with `capacity` and `warranty_years` (5)     |
| `waf`              | write amplification to reckon with: flash bytes per byte that we write (1)   |
| `already_written`  | bytes written before we began to count, such as SMART's data units written   |
| `daily`            | bytes that shorthaul may write to the drive per day                          |
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import fcntl
import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shorthaul.errors import EnduranceError
from shorthaul.fallbacks import note_fallback
from shorthaul.settings import settings
from shorthaul.units import format_bytes, parse_bytes
from shorthaul.whole_file import whole_file

_log = logging.getLogger("shorthaul")

KNOBS = ("tbw", "dwpd", "capacity", "warranty_years", "waf", "already_written", "daily")
SECONDS_PER_DAY = 86_400
_REMEMBERED_DAYS = 31


@dataclass(frozen=True)
class Endurance:
    """A drive's rated writes, and how much of them may be used."""

    rated_bytes: int | None = None  # None: not known
    daily_bytes: int | None = None  # None: no limit
    write_amplification: float = 1.0
    already_written_bytes: int = 0

    @classmethod
    def parse(cls, knobs: Mapping[str, Any] | Endurance | None) -> Endurance:
        """The endurance that a user's knobs describe; no knobs mean no limits."""
        if isinstance(knobs, Endurance):
            return knobs
        knobs = dict(knobs or {})
        unknown = sorted(set(knobs) - set(KNOBS))
        if unknown:
            raise EnduranceError(
                f"endurance has no knob {', '.join(unknown)}; there are {', '.join(KNOBS)}."
            )
        daily = knobs.get("daily")
        return cls(
            rated_bytes=_parse_rating(knobs),
            daily_bytes=None if daily is None else _bytes_of("daily", daily),
            write_amplification=_positive("waf", knobs.get("waf", 1.0)),
            already_written_bytes=_bytes_of("already_written", knobs.get("already_written", 0)),
        )

    def worn_share(self, written_bytes: int) -> float | None:
        """The share of the rated writes that is used up; `None` without a rating."""
        if self.rated_bytes is None:
            return None
        used_bytes = self.already_written_bytes + written_bytes * self.write_amplification
        return used_bytes / self.rated_bytes if self.rated_bytes else math.inf

    def days_left(self, *, bytes_per_day: float, written_bytes: int = 0) -> float | None:
        """Days until the rated writes are used up at this rate; `None` without a rating.

        `written_bytes` have been written already, besides `already_written`.
        """
        share = self.worn_share(written_bytes)
        if share is None or self.rated_bytes is None:
            return None
        left_bytes = max(0.0, self.rated_bytes * (1 - share)) if share < 1 else 0.0
        if bytes_per_day <= 0:
            return math.inf
        return left_bytes / (bytes_per_day * self.write_amplification)

    def bytes_left_today(self, written_today_bytes: int) -> int | None:
        """What may still be written today; `None` without a limit."""
        if self.daily_bytes is None:
            return None
        return max(0, self.daily_bytes - written_today_bytes)


def estimate_bytes_per_day(written_bytes_per_step: float, step_seconds: float) -> float:
    """What a training run writes in a day of such steps."""
    return written_bytes_per_step / step_seconds * SECONDS_PER_DAY


def _parse_rating(knobs: Mapping[str, Any]) -> int | None:
    companions = [name for name in ("capacity", "warranty_years") if name in knobs]
    if "tbw" in knobs:
        if "dwpd" in knobs or companions:
            raise EnduranceError("give either tbw, or dwpd with capacity: got both.")
        return _bytes_of("tbw", knobs["tbw"])
    if "dwpd" not in knobs:
        if companions:
            raise EnduranceError(f"{companions[0]} says nothing without dwpd; got no dwpd.")
        return None
    if "capacity" not in knobs:
        raise EnduranceError("dwpd counts whole drives: give the drive's capacity too.")
    years = _positive("warranty_years", knobs.get("warranty_years", 5))
    per_day = _positive("dwpd", knobs["dwpd"]) * _bytes_of("capacity", knobs["capacity"])
    return round(per_day * 365 * years)


def _bytes_of(knob: str, value: Any) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise EnduranceError(f"endurance {knob}: {error}") from error


def _positive(knob: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise EnduranceError(f"endurance {knob} must be a positive number, got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class Device:
    """The drive under a directory: a key that survives reboots where the drive has a number."""

    key: str
    name: str  # as the kernel calls it now, such as `nvme0n1`
    model: str = ""


def identify_device(directory: str | os.PathLike[str], sys_root: Path = Path("/sys")) -> Device:
    """The drive that holds `directory`: by serial number or world-wide name, else by its name.

    Network and other file systems without a block device are told apart by their device number.
    """
    number = Path(directory).stat().st_dev
    label = f"{os.major(number)}:{os.minor(number)}"
    block = sys_root / "dev" / "block" / label
    if not block.exists():
        return Device(f"filesystem-{label}", label)
    block = block.resolve()
    if (block / "partition").exists():
        block = block.parent
    model = _read_word(block / "device" / "model")
    for path in ("wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"):
        identity = _read_word(block / path)
        if identity:
            return Device(f"{model} {identity}".strip(), block.name, model)
    return Device(f"block-{block.name}", block.name, model)


def _read_word(path: Path) -> str:
    try:
        return " ".join(path.read_text(errors="replace").split())
    except OSError:
        return ""


@dataclass(frozen=True)
class Written:
    """What one ledger holds."""

    total_bytes: int = 0
    by_day: Mapping[str, int] = field(default_factory=dict)  # ISO dates in UTC, the last month


class WriteLedger:
    """Bytes written to one drive, counted across processes and runs.

    The file is replaced whole, under a lock that goes with its holder, so a reader sees a whole
    count and two writers lose none. A file that cannot be read is set aside with a warning.
    """

    def __init__(
        self,
        device: Device,
        directory: Path | None = None,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self.device = device
        self.directory = (directory or settings.state_directory) / "written"
        self._now = now
        # A drive's number may hold any character; a digest makes it a file name.
        digest = hashlib.sha256(device.key.encode()).hexdigest()[:16]
        self.path = self.directory / f"{digest}.json"

    @property
    def today(self) -> str:
        """The date in UTC, as counts are kept by it."""
        return self._now().date().isoformat()

    def written_today_bytes(self) -> int:
        """What has been counted since midnight UTC."""
        return self.read().by_day.get(self.today, 0)

    def seconds_left_today(self) -> float:
        """How long until midnight UTC; at least a second."""
        now = self._now()
        midnight = datetime.datetime.combine(now.date(), datetime.time(), now.tzinfo)
        return max(1.0, SECONDS_PER_DAY - (now - midnight).total_seconds())

    def add(self, written_bytes: int, day: str | None = None) -> Written:
        """Count bytes that have been written, by default today; returns the new count."""
        if written_bytes < 0:
            raise EnduranceError(f"bytes written cannot be negative, got {written_bytes}.")
        with self._locked():
            before = self.read()
            day = day or self.today
            by_day = dict(before.by_day)
            by_day[day] = by_day.get(day, 0) + written_bytes
            recent = dict(sorted(by_day.items())[-_REMEMBERED_DAYS:])
            after = Written(before.total_bytes + written_bytes, recent)
            self._replace(after)
        return after

    def read(self) -> Written:
        """What has been counted so far; what cannot be understood is set aside."""
        try:
            content = json.loads(self.path.read_text())
            by_day = {str(day): int(count) for day, count in content["by_day"].items()}
            return Written(int(content["total_bytes"]), by_day)
        except FileNotFoundError:
            return Written()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = self.path.with_suffix(".damaged")
            with contextlib.suppress(FileNotFoundError):
                self.path.replace(aside)
            _log.warning(
                "endurance: the count of bytes written to %s cannot be read (%s); it starts again "
                "at nothing, and the old file is %s",
                self.device.name,
                error,
                aside,
            )
            return Written()

    def _replace(self, written: Written) -> None:
        content = {
            "device": {"key": self.device.key, "name": self.device.name},
            "total_bytes": written.total_bytes,
            "by_day": dict(written.by_day),
        }
        with whole_file(self.path) as file:
            file.write(json.dumps(content, indent=1).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self.path.with_suffix(".lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class WearLimit:
    """Counts what is written to a drive, and says when today's share of it is used up.

    The ledger on disk is brought up to date after every `SYNC_BYTES`, on demand, and when the
    process ends: often enough for a daily limit, seldom enough to cost nothing. It is never written
    from a finalizer, which might run inside the very code that writes it. Where it cannot be
    written, the count goes on in memory, which is noted as a fallback; a daily limit that could not
    be counted from the start is refused.
    """

    SYNC_BYTES = 256 * 2**20

    def __init__(self, endurance: Endurance, ledger: WriteLedger, processes: int = 1) -> None:
        self.endurance, self.ledger, self.processes = endurance, ledger, processes
        self._saved = Written()  # what the ledger held last
        self._tried_bytes = 0  # unsaved when writing the ledger last failed
        self._told_on = ""  # the day on which it was last said that the limit is used up
        try:
            self._saved = ledger.read() if endurance.daily_bytes is None else ledger.add(0)
        except OSError as error:
            if endurance.daily_bytes is not None:
                raise EnduranceError(
                    "endurance daily: what is written per day cannot be counted in "
                    f"{ledger.directory} ({error.strerror}). Set SHORTHAUL_STATE to a directory "
                    "that can be written to, or leave out `daily`."
                ) from error

    @property
    def left_bytes(self) -> int | None:
        """What may still be written today; `None` without a limit."""
        if self.endurance.daily_bytes is None:
            return None
        today = self.ledger.today
        unsaved_bytes = _unsaved_bytes.get(self.ledger.path, {}).get(today, 0)
        return self.endurance.bytes_left_today(self._saved.by_day.get(today, 0) + unsaved_bytes)

    def refusal(self, length_bytes: int) -> str | None:
        """Why that many bytes may not be written today, logged once a day; `None` when they may."""
        left_bytes = self.left_bytes
        if left_bytes is None or length_bytes <= left_bytes:
            return None
        if self._told_on != self.ledger.today:
            self._told_on = self.ledger.today
            _log.warning(
                "endurance: activations stay in memory until midnight UTC: of the %s that may be "
                "written to %s per day %s are left, and %s were to be written",
                format_bytes(self.endurance.daily_bytes or 0),
                self.ledger.device.name,
                format_bytes(left_bytes),
                format_bytes(length_bytes),
            )
        return "today's writes are used up"

    def limits_per_step(self, step_seconds: float) -> tuple[int | None, ...]:
        """What one step may write, the strictest limit first; `None` without a limit.

        Processes of one job have equal shares. First a share of what is left today, for steps of this length until midnight; then all of it,
        for a run that does not last the day and has no other way to fit its memory.
        """
        left_bytes = self.left_bytes
        if left_bytes is None:
            return (None,)
        share = min(1.0, step_seconds / self.ledger.seconds_left_today())
        own_bytes = left_bytes // self.processes
        return (round(own_bytes * share), own_bytes)

    def note_written(self, written_bytes: int) -> None:
        """So many bytes have been written."""
        path, today = self.ledger.path, self.ledger.today
        _ledgers[path] = self.ledger
        by_day = _unsaved_bytes.setdefault(path, {})
        by_day[today] = by_day.get(today, 0) + written_bytes
        if sum(by_day.values()) - self._tried_bytes >= self._sync_bytes:
            self.save()

    @property
    def _sync_bytes(self) -> int:
        """Unsaved bytes of this process at most; of all that share a limit, a quarter of what is left."""
        left_bytes = self.left_bytes
        if left_bytes is None or self.processes == 1:
            return self.SYNC_BYTES
        return min(self.SYNC_BYTES, left_bytes // (4 * self.processes))

    def save(self) -> Written:
        """Bring the ledger up to date; returns what is counted, with what others added."""
        path = self.ledger.path
        try:
            self._saved = _save_unsaved(self.ledger) or self.ledger.read()
            self._tried_bytes = 0
        except OSError as error:
            note_fallback(
                f"the count of bytes written in {self.ledger.directory}",
                "what this process counts itself",
                f"the file cannot be written ({error.strerror})",
            )
        unsaved = _unsaved_bytes.get(path, {})
        self._tried_bytes = sum(unsaved.values())
        by_day = Counter(self._saved.by_day) + Counter(unsaved)
        return Written(self._saved.total_bytes + self._tried_bytes, by_day)


# Written by this process and not yet in a ledger, by the ledger's path and by day.
_unsaved_bytes: dict[Path, dict[str, int]] = {}
_ledgers: dict[Path, WriteLedger] = {}


def _save_unsaved(ledger: WriteLedger) -> Written | None:
    """Add what is not in a ledger yet; what cannot be added stays."""
    unsaved, written = _unsaved_bytes.get(ledger.path, {}), None
    for day, unsaved_bytes in list(unsaved.items()):
        written = ledger.add(unsaved_bytes, day)
        unsaved[day] -= unsaved_bytes
        if not unsaved[day]:
            del unsaved[day]
    return written


@atexit.register
def _save_all() -> None:
    for path in list(_unsaved_bytes):
        with contextlib.suppress(OSError):  # a test's directory may be gone by now
            _save_unsaved(_ledgers[path])


# What the parent wrote is the parent's to count.
os.register_at_fork(after_in_child=_unsaved_bytes.clear)
