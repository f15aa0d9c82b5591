"""The wear of all drives that activations are written to: each has its own count and its own limit.

Two scratch directories on one drive share a count. The ratings that a user gives hold for each drive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from shorthaul.offload.drive.endurance import (
    Device,
    Endurance,
    WearLimit,
    WriteLedger,
    Written,
    identify_device,
)


class Drives:
    """The drives under some directories, told apart by the position of a directory among them.

    `processes` are those of the job that write here; they share what may be written each day.
    """

    def __init__(
        self,
        endurance: Endurance,
        directories: Iterable[str | os.PathLike[str]],
        processes: int = 1,
    ) -> None:
        self.endurance = endurance
        limits: dict[str, WearLimit] = {}
        self._of_directory = []
        for each in directories:
            device = identify_device(each)
            if device.key not in limits:
                limits[device.key] = WearLimit(endurance, WriteLedger(device), processes)
            self._of_directory.append(limits[device.key])
        self._limits = tuple(limits.values())

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each drive once."""
        return tuple(each.ledger.device for each in self._limits)

    @property
    def left_bytes(self) -> int | None:
        """What may still be written today to the drive with the least left; `None` without a limit."""
        return (
            min((each.left_bytes or 0 for each in self._limits), default=0)
            if self._is_limited
            else None
        )

    @property
    def _is_limited(self) -> bool:
        return self.endurance.daily_bytes is not None

    def refusal(self, length_bytes: int) -> str | None:
        """Why `length_bytes` may not be written to one of them today; `None` when they may."""
        return next((found for each in self._limits if (found := each.refusal(length_bytes))), None)

    def limits_per_step(self, step_seconds: float) -> tuple[int | None, ...]:
        """What one step may write to all of them, evenly, the strictest limit first."""
        of_each = [each.limits_per_step(step_seconds) for each in self._limits]
        return tuple(
            None if None in same else min(same) * len(same) for same in zip(*of_each, strict=True)
        )

    def note_written(self, directory: int, written_bytes: int) -> None:
        """So many bytes have been written to the directory at that position."""
        self._of_directory[directory].note_written(written_bytes)

    def save(self) -> Sequence[Written]:
        """Bring the count of each drive up to date; what they are, with what others added."""
        return [each.save() for each in self._limits]

    def days_left(self, counted: Sequence[Written], *, bytes_per_day: float) -> float | None:
        """Days until the first drive is worn, at what all are written; `None` without a rating."""
        share = bytes_per_day / len(counted)
        days = [
            self.endurance.days_left(bytes_per_day=share, written_bytes=each.total_bytes)
            for each in counted
        ]
        known = [each for each in days if each is not None]
        return min(known) if known else None
