"""Whether every rank maps the whole topology or holds its own rows, and where those lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shorthaul.distributed.partition.manifest import COLUMNS, Manifest, rows_file
from shorthaul.distributed.partition.mapped import map_file, map_topology
from shorthaul.distributed.ranks.agreement import require_equal
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.topology.held_rows import HeldPiece, HeldRows
from shorthaul.errors import RowArgumentError
from shorthaul.graphs import TargetIndex
from shorthaul.host_memory import usable_bytes

Topology = Literal["replicated", "split"]
Wanted = Literal["auto", "replicated", "split"]
TOPOLOGIES: tuple[Wanted, ...] = ("auto", "replicated", "split")
# The rest is for features, models and what the system keeps of other files.
_SHARE_OF_MEMORY = 0.5


def choose_topology(wanted: Wanted, manifest: Manifest) -> Topology:
    """What this rank's machine has room for, or what was asked for by name."""
    if wanted not in TOPOLOGIES:
        raise RowArgumentError("topology", f"one of {', '.join(TOPOLOGIES)}", repr(wanted))
    if manifest.is_split:
        if wanted == "replicated":
            raise RowArgumentError(
                "topology",
                "'split' or 'auto', as these parts were cut with topology='split' and no folder has the whole",
                repr(wanted),
            )
        return "split"
    if wanted != "auto":
        return wanted
    fits = manifest.topology_bytes <= _SHARE_OF_MEMORY * usable_bytes()
    return "replicated" if fits else "split"


def agree_on_topology(wire: Wire, wanted: Wanted, mine: Topology) -> Topology:
    """The same on all ranks: split where any machine has no room for the whole."""
    require_equal(wire, "topology=", wanted, "Give the same on every rank.")
    is_split = any(split for (split,) in wire.gather_numbers([mine == "split"]))
    return "split" if is_split else "replicated"


def open_held_rows(folder: Path, manifest: Manifest, parts: Sequence[int]) -> HeldRows:
    """The rows of some parts, mapped: of their own files, or of the whole topology's."""
    if not manifest.is_split:
        index = map_topology(folder, manifest).by_target()
        return HeldRows(
            [
                HeldPiece.of(index, nodes)
                for part in parts
                for nodes in manifest.book.global_rows(part)
            ]
        )
    pieces = []
    for part in parts:
        for kind, nodes in zip(
            manifest.book.node_types, manifest.book.global_rows(part), strict=True
        ):
            columns = [map_file(folder / rows_file(part, kind, each)) for each in COLUMNS]
            pieces.append(HeldPiece.of(TargetIndex(*columns), nodes, nodes.start))
    return HeldRows(pieces)
