"""`partition`: a graph and its features, streamed into parts on one machine.

>>> import tempfile
>>> from shorthaul.graphs import RelationalGraph, TargetIndex
>>> graph = RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
>>> with tempfile.TemporaryDirectory() as folder:
...     report = partition(graph, folder, 2, features=torch.eye(4), method="range")
...     report.parts[1].nodes, report.parts[1].cut_edges
(2, 1)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.partition.asked import (
    PartitionWishes,
    Tables,
    describe_run,
    global_ids,
    read_seeds,
    read_tables,
    require_wishes,
)
from shorthaul.distributed.partition.journal import (
    Journal,
    alone_in,
    find_finished,
    require_own,
)
from shorthaul.distributed.partition.manifest import (
    COLUMNS,
    Manifest,
    TableFacts,
    hot_file,
    hot_ids_file,
    originals_file,
    part_file,
    rows_file,
    seeds_file,
    topology_file,
    work_file,
)
from shorthaul.distributed.partition.mapped import map_file, map_topology
from shorthaul.distributed.partition.methods import STREAM_PASSES, place_nodes, weigh_nodes
from shorthaul.distributed.partition.renumbering import Renumbering, plan_renumbering
from shorthaul.distributed.partition.report import PartitionReport, count_parts
from shorthaul.graphs import RelationalGraph, TargetIndex
from shorthaul.graphs.inclusion.inclusion import estimate_inclusion_of
from shorthaul.graphs.inclusion.target_rows import PIECE_EDGES, TargetRows, cut_rows
from shorthaul.tensors.tables.table import RowTable

FEATURES, LABELS = "features", "labels"
_CHUNK_BYTES = 16 * 2**20


def partition(
    graph: RelationalGraph | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    parts: int,
    *,
    features: Any = None,
    labels: Any = None,
    seeds: Any = None,
    method: str = "stream",
    hot: float = 0.0,
    fan_outs: Sequence[int] = (15, 10, 5),
    batch_size: int = 1024,
    passes: int = STREAM_PASSES,
    topology: str = "replicated",
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    start_over: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> PartitionReport:
    """Cut `graph` into parts in `folder`; a run that was stopped goes on where it was.

    Parts that are there already, whole and cut in the same way, stay as they are.

    Args:
        graph: A graph, or the folder of a saved one, which is streamed and not loaded.
        folder: Where the parts are written: one that is empty or does not exist, or one with parts.
        parts: How many there are.
        features: A table for all nodes, or a mapping by node type; None (default) for none.
        labels: As `features`; None (default) for none.
        seeds: What will be trained on: global ids, or a mapping by type; parts get equally many of
            them. None (default) for none.
        method: How nodes are assigned: `"stream"` (default), `"metis"` or `"range"`.
        hot: Share of each type's rows, those most likely in a batch, that every rank is given
            (default 0).
        fan_outs: Neighbors per hop of such a batch (default 15, 10, 5).
        batch_size: Seeds of such a batch (default 1024).
        passes: How often `"stream"` goes over the edges (default 3).
        topology: `"replicated"` (default) writes the topology as a whole, for folders that every machine has;
            `"split"` writes into each part the edges into its own nodes, and nowhere all of them.
        tables: Further tables by name, each as `features`; None (default) for none.
        start_over: Whether parts that are there, also whole ones, are removed first (default False).
        tell: Called with a line of progress now and then (by default nobody is told).
    """
    given = graph if isinstance(graph, RelationalGraph) else RelationalGraph.open(graph)
    wishes = PartitionWishes(
        parts, method, float(hot), tuple(fan_outs), batch_size, passes, topology
    )
    require_wishes(wishes)
    named = read_tables(given, {FEATURES: features, LABELS: labels}, tables or {})
    wanted = read_seeds(given, seeds)
    place = Path(folder)
    require_own(place)
    with alone_in(place):
        asked = describe_run(given, named, wanted, wishes)
        if not start_over and (finished := find_finished(place, asked)) is not None:
            tell(f"{place} has these parts already")
            return PartitionReport.from_dict(finished.report)
        journal = Journal(place, asked, tell, start_over=start_over)
        return _Run(given, named, wanted, wishes, journal).write()


class _Run:
    """One partitioning, from the graph to the last file."""

    def __init__(
        self,
        graph: RelationalGraph,
        tables: Mapping[str, Tables],
        seeds: Mapping[str, torch.Tensor],
        wishes: PartitionWishes,
        journal: Journal,
    ) -> None:
        self.graph, self.tables, self.seeds = graph, tables, seeds
        self.wishes, self.journal = wishes, journal
        self.rows = TargetRows(graph)

    def write(self) -> PartitionReport:
        """Everything, the description last."""
        tell, wishes = self.journal.tell, self.wishes
        places = self._place()
        numbering = plan_renumbering(self.graph, places, wishes.parts)
        del places
        self._write_numbers(numbering)
        self._write_topology(numbering)
        facts = self._write_tables(numbering)
        tell("choosing hot rows")
        hot = self._write_hot(numbering, facts)
        tell("counting what each part has, and what its batches will ask of others")
        manifest = Manifest(
            wishes.method,
            numbering.book.offsets,
            tuple((one, name, other) for one, name, other in self.graph.relations),
            str(self.graph.index_dtype).removeprefix("torch."),
            self.graph.num_edges,
            facts,
            tuple(self.seeds),
            {name: len(ids) for name, ids in hot.items()},
        )
        cut = map_topology(self.journal.folder, manifest, self._topology_file)
        if wishes.topology == "split":
            self._write_rows(cut.by_target(), numbering)
        seeds = numbering.numbers[self._seeds_or_all()]
        report = count_parts(cut, numbering.book, self._row_bytes(), seeds, hot, wishes)
        files = self.journal.lasting_files()
        self.journal.finish(replace(manifest, report=report.to_dict(), files=files))
        return report

    def _place(self) -> torch.Tensor:
        def make() -> Iterator[torch.Tensor]:
            self.journal.tell(f"placing {self.graph.num_nodes:,} nodes by {self.wishes.method}")
            seeds = global_ids(self.graph, self.seeds)
            weights = weigh_nodes(self.graph, self._row_bytes(), seeds)
            wishes = self.wishes
            yield place_nodes(
                self.graph, wishes.parts, wishes.method, weights, passes=wishes.passes
            )

        path = self.journal.save(work_file("places"), self.graph.num_nodes, make)
        return map_file(path)

    def _write_numbers(self, numbering: Renumbering) -> None:
        for name, originals in numbering.originals.items():
            self.journal.save(originals_file(name), len(originals), partial(list, (originals,)))
        for name, ids in self.seeds.items():
            start = numbering.book.starts[name]
            renumbered = numbering.numbers[ids.long() + start].long() - start
            self.journal.save(seeds_file(name), len(ids), partial(list, (renumbered,)))

    def _write_topology(self, numbering: Renumbering) -> None:
        graph, index, nodes = self.graph, self.rows.index, self.graph.num_nodes
        originals = torch.cat(
            [each + graph.nodes_of(name).start for name, each in numbering.originals.items()]
        ).long()
        degrees = self.rows.pointers.diff()[originals]
        pointers = torch.zeros(nodes + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(degrees, 0, out=pointers[1:])
        dtype = graph.index_dtype

        def positions() -> Iterator[torch.Tensor]:
            for first, stop in cut_rows(pointers, PIECE_EDGES):
                counts = degrees[first:stop]
                begins = self.rows.pointers[originals[first:stop]] - (
                    pointers[first:stop] - pointers[first]
                )
                within = torch.arange(int(counts.sum()), dtype=torch.int64, device="cpu")
                yield within + torch.repeat_interleave(begins, counts)

        def targets() -> Iterator[torch.Tensor]:
            for first, stop in cut_rows(pointers, PIECE_EDGES):
                own = torch.arange(first, stop, dtype=dtype, device="cpu")
                yield torch.repeat_interleave(own, degrees[first:stop])

        def column(values: torch.Tensor) -> Callable[[], Iterator[torch.Tensor]]:
            return lambda: (values[each] for each in positions())

        def sources() -> Iterator[torch.Tensor]:
            return (numbering.numbers[self.rows.index.sources[each].long()] for each in positions())

        empty = torch.empty(0, dtype=dtype, device="cpu")
        save, file = self.journal.save, self._topology_file
        save(file("pointers"), nodes + 1, lambda: [pointers.to(dtype)])
        for name, make in (
            ("sources", sources),
            ("targets", targets),
            ("relations", column(index.relations)),
            ("edges", column(index.edges)),
        ):
            save(file(name), graph.num_edges, partial(_after, empty, make))

    def _topology_file(self, column: str) -> str:
        """Where the whole topology is written: for good, or until it is split."""
        return work_file(column) if self.wishes.topology == "split" else topology_file(column)

    def _write_rows(self, index: TargetIndex, numbering: Renumbering) -> None:
        """For each part and type the rows of its nodes."""
        book = numbering.book
        for part in range(self.wishes.parts):
            for kind, nodes in zip(book.node_types, book.global_rows(part), strict=True):
                ends = index.pointers[nodes.start : nodes.stop + 1]
                begin, end = int(ends[0]), int(ends[-1])
                columns = {
                    "pointers": ends - begin,
                    **{each: getattr(index, each)[begin:end] for each in COLUMNS[1:]},
                }
                for name, column in columns.items():
                    path = rows_file(part, kind, name)
                    self.journal.save(path, len(column), partial(_cut_in_chunks, column))

    def _write_tables(self, numbering: Renumbering) -> dict[str, dict[str, TableFacts]]:
        facts: dict[str, dict[str, TableFacts]] = {}
        for kind, tables in self.tables.items():
            for name, table in tables.items():
                suffix = ".safetensors" if table.dtype is torch.bfloat16 else ".npy"
                words = str(table.dtype).removeprefix("torch.")
                facts.setdefault(kind, {})[name] = TableFacts(words, table.row_shape, suffix)
                for part in range(self.wishes.parts):
                    own = numbering.book.rows(kind, part)
                    ids = numbering.originals[kind][own.start : own.stop]
                    self.journal.save(
                        part_file(part, kind, name, suffix),
                        len(ids),
                        partial(_gather_in_chunks, table, ids),
                    )
        return facts

    def _write_hot(
        self, numbering: Renumbering, facts: Mapping[str, Mapping[str, TableFacts]]
    ) -> dict[str, torch.Tensor]:
        if not self.wishes.hot or not self.tables:
            return {}
        likely = estimate_inclusion_of(
            self.rows, self._seeds_or_all(), self.wishes.fan_outs, self.wishes.batch_size
        )
        found: dict[str, torch.Tensor] = {}
        for kind in facts:
            of_type = self.graph.nodes_of(kind)
            own = likely[of_type.start : of_type.stop][numbering.originals[kind].long()]
            count = round(self.wishes.hot * len(own))
            ids = torch.sort(torch.topk(own, count, sorted=False).indices).values
            found[kind] = ids
            self.journal.save(hot_ids_file(kind), count, partial(list, (ids,)))
            for name, each in facts[kind].items():
                table, originals = self.tables[kind][name], numbering.originals[kind][ids]
                self.journal.save(
                    hot_file(kind, name, each.suffix),
                    count,
                    partial(_gather_in_chunks, table, originals),
                )
        return found

    def _row_bytes(self) -> dict[str, int]:
        """Bytes of a row of each type, over all its tables."""
        return {
            kind: sum(each.stored_row_bytes for each in tables.values())
            for kind, tables in self.tables.items()
        }

    def _seeds_or_all(self) -> torch.Tensor:
        """What is trained on; all nodes where that was not said."""
        seeds = global_ids(self.graph, self.seeds)
        if len(seeds):
            return seeds
        return torch.arange(self.graph.num_nodes, dtype=torch.int64, device="cpu")


def _gather_in_chunks(table: RowTable, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    step = max(1, _CHUNK_BYTES // max(1, table.stored_row_bytes))
    for start in range(0, max(1, len(ids)), step):
        yield table.gather(ids[start : start + step])


def _cut_in_chunks(column: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, max(1, len(column)), PIECE_EDGES):
        yield column[start : start + PIECE_EDGES]


def _after(
    first: torch.Tensor, make: Callable[[], Iterator[torch.Tensor]]
) -> Iterator[torch.Tensor]:
    yield first  # a file without rows has a dtype too
    yield from make()
