"""What each part has, and what its batches will ask of others: told before anybody trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from shorthaul.distributed.partition.asked import PartitionWishes
from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.inclusion.target_rows import PIECE_EDGES, cut_rows
from shorthaul.units import format_bytes

SAMPLED_BATCHES = 4


@dataclass(frozen=True)
class PartReport:
    """One part."""

    part: int  # its number
    nodes: int  # that it owns
    edges: int  # that end at its nodes
    cut_edges: int  # of these, those that begin elsewhere
    table_bytes: int  # of its rows
    seeds: int  # that it trains on
    input_rows_per_batch: float  # of its share of a batch, sampled
    remote_rows_per_batch: float  # of these, those that are neither its own nor hot


@dataclass(frozen=True)
class PartitionReport:
    """All parts."""

    parts: tuple[PartReport, ...]  # in order
    hot_bytes: int  # of the rows that every rank has

    @property
    def cut_share(self) -> float:
        """The share of edges between parts."""
        edges = sum(each.edges for each in self.parts)
        return sum(each.cut_edges for each in self.parts) / max(1, edges)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"parts": [asdict(each) for each in self.parts], "hot_bytes": self.hot_bytes}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> PartitionReport:
        """What `to_dict` gave.

        Args:
            found: That.
        """
        return cls(tuple(PartReport(**each) for each in found["parts"]), found["hot_bytes"])

    def table(self) -> Table:
        """The same as a table for `rich.print`."""
        title = f"{len(self.parts)} parts, {self.cut_share:.1%} of the edges cut"
        table = Table(title=title, title_justify="left")
        for heading in (
            "part",
            "nodes",
            "edges",
            "cut",
            "bytes",
            "seeds",
            "rows a batch",
            "remote",
        ):
            table.add_column(heading, justify="right")
        for each in self.parts:
            table.add_row(
                f"{each.part}",
                f"{each.nodes:,}",
                f"{each.edges:,}",
                f"{each.cut_edges / max(1, each.edges):.1%}",
                format_bytes(each.table_bytes),
                f"{each.seeds:,}",
                f"{each.input_rows_per_batch:,.0f}",
                f"{each.remote_rows_per_batch:,.0f}",
            )
        return table


def count_parts(
    graph: RelationalGraph,
    book: PartitionBook,
    row_bytes: Mapping[str, int],
    seeds: torch.Tensor,
    hot: Mapping[str, torch.Tensor],
    wishes: PartitionWishes,
) -> PartitionReport:
    """Count edges, and sample some batches; `graph` and `seeds` have the parts' ids."""
    index = graph.by_target()
    owners = torch.empty(graph.num_nodes, dtype=torch.int16, device="cpu")
    for part in range(book.parts):
        for rows in book.global_rows(part):
            owners[rows.start : rows.stop] = part
    edges = torch.zeros(book.parts, dtype=torch.int64, device="cpu")
    cut = torch.zeros_like(edges)
    for first, stop in cut_rows(index.pointers, PIECE_EDGES):
        ends = index.pointers[first : stop + 1]
        sources = owners[index.sources[int(ends[0]) : int(ends[-1])].long()]
        targets = torch.repeat_interleave(owners[first:stop], ends.diff().long())
        edges += torch.bincount(targets, minlength=book.parts)
        cut += torch.bincount(targets[sources != targets], minlength=book.parts)
    is_hot = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    for name, ids in hot.items():
        is_hot[ids + book.starts[name]] = True
    has_rows = torch.zeros_like(is_hot)
    for name in row_bytes:
        has_rows[book.starts[name] : book.starts[name] + book.count(name)] = True
    seed_owners = owners[seeds.long()]
    reports = []
    for part in range(book.parts):
        own = seeds[seed_owners == part]
        inputs, remote = _sample_batches(graph, own, owners, is_hot, has_rows, part, wishes)
        reports.append(
            PartReport(
                part,
                sum(len(book.rows(name, part)) for name in book.node_types),
                int(edges[part]),
                int(cut[part]),
                sum(len(book.rows(name, part)) * each for name, each in row_bytes.items()),
                len(own),
                inputs,
                remote,
            )
        )
    return PartitionReport(
        tuple(reports), sum(len(ids) * row_bytes[name] for name, ids in hot.items())
    )


def _sample_batches(
    graph: RelationalGraph,
    seeds: torch.Tensor,
    owners: torch.Tensor,
    is_hot: torch.Tensor,
    has_rows: torch.Tensor,
    part: int,
    wishes: PartitionWishes,
) -> tuple[float, float]:
    """Input rows, and remote ones, of a rank's share of a batch: the mean of a few."""
    if not len(seeds):
        return 0.0, 0.0
    sampler = NeighborSampler(graph, wishes.fan_outs, seed=0)
    generator = torch.Generator().manual_seed(part)
    size = min(len(seeds), max(1, wishes.batch_size // wishes.parts))
    inputs = remote = 0
    for number in range(SAMPLED_BATCHES):
        drawn = torch.randperm(len(seeds), generator=generator, dtype=torch.int64, device="cpu")
        nodes = sampler.sample(seeds[drawn[:size]], number=number).input_nodes.long()
        nodes = nodes[has_rows[nodes]]
        inputs += len(nodes)
        remote += int(((owners[nodes] != part) & ~is_hot[nodes]).sum())
    return inputs / SAMPLED_BATCHES, remote / SAMPLED_BATCHES
