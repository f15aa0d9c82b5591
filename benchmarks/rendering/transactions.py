"""The lines that gathers ask of host memory, and what follows for the time of a transfer: a model.

Nothing here was measured on a GPU. Lines are counted from traced addresses (`measuring/transactions.py`); links
have the rates of their standard, and protocol costs both ways of a transfer alike. The way that the paper
compares with gathers rows by the CPU into a buffer, then copies it::

    staged   bytes / rate of the CPU's gather + bytes / rate of the link
    direct   lines * 128 bytes / rate of the link
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

RECORD = Path(__file__).parents[1] / "measuring" / "transactions.jsonl"
LINE_BYTES = 128
OURS = "ours"


def _rate_of_link(transfers_per_second: float) -> float:
    """Bytes a second of sixteen lanes; 128 bits of 130 are data."""
    return transfers_per_second * 16 * 128 / 130 / 8


# PCI-SIG's transfers a second for each lane.
LINKS = {
    "PCIe 3.0 x16": _rate_of_link(8e9),
    "PCIe 4.0 x16": _rate_of_link(16e9),
    "PCIe 5.0 x16": _rate_of_link(32e9),
}
# Six channels of DDR4-2933, eight bytes each (Intel's data sheet of the Xeon Gold 6230): no gather by
# a CPU is faster than this, as it reads a row, fetches the line that it writes to, and writes it.
HOST_BYTES_PER_SECOND = 6 * 2933e6 * 8
FASTEST_GATHER = HOST_BYTES_PER_SECOND / 3
PAPERS_REDUCTION = 0.471


def read_record() -> list[dict[str, Any]]:
    """What was traced."""
    return [json.loads(line) for line in RECORD.read_text().splitlines()]


def model_direct_seconds(row: dict[str, Any], link: float) -> float:
    """A row that the device reads over a link."""
    return float(row["lines"] * LINE_BYTES / link)


def model_staged_seconds(row: dict[str, Any], link: float, gather: float) -> float:
    """A row that the CPU gathers at this rate and that is copied then."""
    return float(row["row_bytes"] / gather + row["row_bytes"] / link)


def model_reduction(rows: Iterable[dict[str, Any]], link: float, gather: float) -> float:
    """The share of the time of a transfer that direct reads save, on average over widths."""
    return mean(
        1 - model_direct_seconds(row, link) / model_staged_seconds(row, link, gather)
        for row in rows
    )


def find_gather_rate(rows: list[dict[str, Any]], link: float, reduction: float) -> float:
    """The rate of the CPU's gather at which direct reads save this share on average."""
    slow, fast = 1e6, 1e15
    for _ in range(200):  # the faster the CPU, the less is saved
        middle = (slow * fast) ** 0.5
        if model_reduction(rows, link, middle) > reduction:
            slow = middle
        else:
            fast = middle
    return slow


def render_transactions() -> str:
    """A line for each width: what rows fill, and what each way asks for."""
    rows = read_record()
    ways = list(dict.fromkeys(row["way"] for row in rows))
    headings = ["float32 values", "row", "lines it lies in", *(f"lines: {way}" for way in ways)]
    lines = [
        f"| {' | '.join([*headings, 'sectors: ours'])} |",
        f"| {' | '.join(['---:'] * (len(headings) + 1))} |",
    ]
    for width in dict.fromkeys(row["width"] for row in rows):
        of_way = {row["way"]: row for row in rows if row["width"] == width}
        ours = of_way[OURS]
        counts = [f"{of_way[way]['lines']:.2f}" for way in ways]
        begins = [f"{width}", f"{ours['row_bytes']:,} B", f"{ours['touched_lines']:.2f}"]
        cells = [*begins, *counts, f"{ours['sectors']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render_transfer_model() -> str:
    """A line for each link: what direct reads save beside the fastest CPU, and beside which CPU 47.1 %."""
    rows = [row for row in read_record() if row["way"] == OURS]
    lines = [
        f"| link | rate | saved, if the CPU gathers at {FASTEST_GATHER / 1e9:.1f} GB/s "
        f"| {PAPERS_REDUCTION:.1%} are saved, if the CPU gathers at |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, link in LINKS.items():
        saved = model_reduction(rows, link, FASTEST_GATHER)
        rate = find_gather_rate(rows, link, PAPERS_REDUCTION)
        lines.append(f"| {name} | {link / 1e9:.2f} GB/s | {saved:.1%} | {rate / 1e9:.1f} GB/s |")
    return "\n".join(lines)
