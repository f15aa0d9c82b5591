"""What offloading did, for people and for machines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from shorthaul.offload.saved.counts import Counts
from shorthaul.report_table import layer_table
from shorthaul.units import format_bytes, format_seconds


@dataclass(frozen=True)
class OffloadReport:
    """The state of one `sh.offload_activations` when it was asked."""

    counts: Counts  # tensors and bytes, by what became of them
    live_bytes: int  # in memory now
    disk_bytes: int  # in use on disk now
    small_count: int  # tensors below `minimum_bytes`
    minimum_bytes: int  # as it was given
    refusal: str | None  # why the disk is not asked any more
    policy: str  # its name
    explanation: str  # why it decided so
    codec: str | None  # that is used now
    packing: str | None  # why `compress="auto"` uses it, or does not
    gradient_error: float | None  # relative, by a lossy codec; None where it was not measured
    drive: str  # the device, or several
    drive_written_bytes: int  # in all runs
    resident_bytes: int  # of the process, now
    peak_resident_bytes: int | None  # the most at a time; None where the kernel does not tell
    drive_days_left: float | None  # of the first to be worn; None without a rating

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for ledgers."""
        values = dataclasses.asdict(self)
        # Of a `Counter`, `asdict` makes another one that counts its items.
        values["counts"]["left_alone"] = dict(self.counts.left_alone)
        return values

    def summary(self) -> str:
        """One line, for logs."""
        counts = self.counts
        return (
            f"at most {format_bytes(counts.peak_live_bytes)} of activations live instead of "
            f"{format_bytes(counts.peak_saved_bytes)}, {format_bytes(counts.written_bytes)} written, "
            f"{format_bytes(counts.read_bytes)} read, {format_seconds(counts.stall_seconds)} waited; "
            f"{format_bytes(self.resident_bytes)} resident"
        )

    def table(self) -> Table:
        """The same as a table for `rich.print`."""
        counts = self.counts
        table = layer_table(
            f"offloaded activations, policy {self.policy}: {self.summary()}",
            "what",
            "tensors",
            "amount",
            numbers=frozenset({"tensors", "amount"}),
        )
        rows: list[tuple[str, int | None, str]] = [
            ("peak in memory if all were kept", None, format_bytes(counts.peak_saved_bytes)),
            ("peak in memory", None, format_bytes(counts.peak_live_bytes)),
            ("peak with free buffers", None, format_bytes(counts.peak_mapped_bytes)),
            ("in memory now", None, format_bytes(self.live_bytes)),
            ("the process, resident now", None, format_bytes(self.resident_bytes)),
            ("on disk now", None, format_bytes(self.disk_bytes)),
            ("offloaded", counts.offloaded, format_bytes(counts.offloaded_bytes)),
            ("kept", counts.kept, format_bytes(counts.kept_bytes)),
            (
                "saved twice, stored once",
                counts.deduplicated,
                format_bytes(counts.deduplicated_bytes),
            ),
            ("used while being written", counts.forwarded, format_bytes(counts.forwarded_bytes)),
            ("stores called off", counts.cancelled_stores, ""),
            ("still alive when needed", counts.found_alive, ""),
            ("written", None, format_bytes(counts.written_bytes)),
            ("read", None, format_bytes(counts.read_bytes)),
            ("prefetched", counts.prefetched, ""),
            ("read on demand", counts.demand_reads, ""),
            ("waited for", None, format_seconds(counts.stall_seconds)),
            (f"below {format_bytes(self.minimum_bytes)}, left alone", self.small_count, ""),
        ]
        if self.peak_resident_bytes is not None:
            peak = format_bytes(self.peak_resident_bytes)
            rows.insert(5, ("the process, resident at its peak", None, peak))
        rows += [(f"left alone: {why}", times, "") for why, times in counts.left_alone.items()]
        rows += self._packing_rows()
        if counts.kept_and_written:
            rows.append(("kept at first, then written to make room", counts.kept_and_written, ""))
        if counts.recomputed_regions:
            rows.append(("regions computed again", counts.recomputed_regions, ""))
        rows.append(
            (f"written to {self.drive}, ever", None, format_bytes(self.drive_written_bytes))
        )
        if self.drive_days_left is not None:
            rows.append(
                ("days until its rated writes are used", None, f"{self.drive_days_left:,.0f}")
            )
        if self.refusal is not None:
            rows.append(
                (f"kept, as the disk takes no more: {self.refusal}", counts.refused_stores, "")
            )
        for what, tensors, amount in rows:
            table.add_row(what, "" if tensors is None else f"{tensors:,}", amount)
        return table

    def _packing_rows(self) -> list[tuple[str, int | None, str]]:
        counts = self.counts
        rows: list[tuple[str, int | None, str]] = []
        if self.packing is not None:
            rows.append((f"packing: {self.packing}", None, self.codec or "off"))
        if counts.compressed:
            saved = format_bytes(counts.compressed_bytes)
            rows.append(("saved by compression", counts.compressed, saved))
        if counts.packed:
            rows.append(("packed in memory", counts.packed, format_bytes(counts.packed_bytes)))
        if counts.worst_activation_error:
            error = f"{counts.worst_activation_error:.2%}"
            rows.append(("worst error of a packed tensor, sampled", None, error))
        if self.gradient_error is not None:
            rows.append(("error of the gradients, measured", None, f"{self.gradient_error:.2%}"))
        return rows
