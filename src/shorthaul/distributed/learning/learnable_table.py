"""`LearnableTable`: embeddings that many ranks own, read and trained from anywhere.

::

    forward    ids to their owners, rows back              as for any table
    backward   gradients of rows to their owners           which know the ids from the forward pass

A rank adds up the gradients of repeated ids before it sends them, and the owner adds up what all ranks send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shorthaul.distributed.parts import Parts
from shorthaul.distributed.ranks.agreement import read_together
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.gather_plan import GatherPlan, Placement
from shorthaul.distributed.tables.near_rows import NearRows
from shorthaul.distributed.tables.row_exchange import HEADER_BYTES, Round, announce
from shorthaul.distributed.tables.traffic import Traffic
from shorthaul.distributed.tables.wire_format import plan_wire_format
from shorthaul.errors import RowArgumentError
from shorthaul.graphs.sampling.plain import mix
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.tensors.tables.table import HostTable

_BLOCK_ROWS = 1024


class LearnableTable(nn.Module):
    """An embedding for each node of a type; a rank holds those of its own nodes.

    >>> import tempfile, torch, shorthaul as sh
    >>> graph = sh.RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sh.distributed.partition(graph, folder, 2)
    ...     table = sh.distributed.LearnableTable(sh.distributed.open(folder), "node", 8)
    >>> optimizer = torch.optim.SparseAdam(table.parameters())
    >>> table(torch.tensor([3, 0, 3])).sum().backward()
    >>> optimizer.step()

    `weight` is an ordinary parameter with this rank's rows, so PyTorch's optimizers apply the gradients; it
    does not go into DDP, whose ranks hold the same. Gradients are averaged over ranks as DDP's are, so a
    step is that of one process with `nn.Embedding` up to the order of sums.

    Reading is a collective, and so is the backward pass of what was read: every rank runs both, in the
    same order, with ids of its own or none.

    Args:
        parts: What `sh.distributed.open` gave; all ranks make the table.
        node_type: Whose rows.
        width: Numbers in a row.
        dtype: Of the numbers (default `torch.float32`).
        sparse: Whether gradients are sparse rows, as SparseAdam takes them and SGD may (default True);
            otherwise tensors as large as this rank's rows, for Adam and its kin.
        seed: Of the rows that the table begins with, normal with deviation 1 (default 0): the same on
            any number of ranks.
        initial: Called with the first and the last row, exclusive, for the rows between; None (default)
            draws them.
    """

    @outside_graphs
    def __init__(
        self,
        parts: Parts,
        node_type: str,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        sparse: bool = True,
        seed: int = 0,
        initial: Callable[[int, int], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()

        def begin() -> tuple[tuple[int, ...], torch.Tensor]:
            if not dtype.is_floating_point:
                raise RowArgumentError("dtype", "a floating-point dtype", str(dtype))
            parts.book.count(node_type)
            offsets = parts.book.offsets[node_type]
            first, stop = offsets[parts.rank], offsets[parts.rank + 1]
            return offsets, _begin_rows(first, stop, width, dtype, seed, initial)

        what = "the first rows of a learnable table"
        offsets, own = read_together(parts.line, what, parts.described, begin)
        line = parts.make_line(f"learnable table of {node_type}, {width} of {dtype}")
        self.rank, self.ranks, self.sparse = parts.rank, parts.ranks, sparse
        self.first = offsets[parts.rank]
        self.weight = nn.Parameter(own)
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        self._near = NearRows(offsets, {})
        self._table = DistributedTable(
            node_type,
            "embeddings",
            (offsets[-1], width),
            plan_wire_format(None, dtype, (width,)),
            Placement(offsets, offsets, (parts.rank,), none),
            self._near,
            None,
            line,
            range(parts.rank, parts.rank + 1),
            parts.described,
        )
        self._passes = 0
        self.numbering = parts.manifest.numbering  # by which a checkpoint is known
        self.part_rows = parts.own_rows(node_type)  # of `weight`, by part

    @property
    def shape(self) -> torch.Size:
        """(rows of all ranks, width)."""
        return self._table.shape

    @outside_graphs
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows that `ids` name, in that order; gradients flow back to their owners.

        Args:
            ids: Those of nodes, within their type, under the parts' numbers, on the CPU; other ones on
                each rank, or none.
        """
        number, self._passes = self._passes, self._passes + 1
        rows: torch.Tensor = _ReadRows.apply(  # type: ignore[no-untyped-call]
            self.weight, self, ids, number
        )
        return rows

    def close(self) -> None:
        """End the table's thread and process group; `weight` stays."""
        self._table.close()

    def report(self) -> Traffic:
        """Rows and bytes of this rank, forward and backward."""
        return self._table.traffic

    def read(self, ids: torch.Tensor, number: int) -> tuple[torch.Tensor, Asked]:
        """Rows, and what the backward pass must know; a collective.

        Args:
            ids: As for `forward`.
            number: Of the pass, the same on all ranks.
        """
        table = self._table
        self._near.tables[self.rank] = HostTable(self.weight.detach())
        asked = Asked(number)

        def work(wire: Wire) -> torch.Tensor:
            plan, problem = table.plan(ids)
            this = Round(f"rows of `{table.name}`", number, table.parts)
            rows = table.fetch(wire, plan, problem, this, note_served=asked.note)
            asked.plan = plan
            return rows.index_select(0, plan.inverse)

        return table.line.run(f"rows of `{table.name}`, pass {number:,}", work), asked

    def send_back(self, gradient: torch.Tensor, asked: Asked) -> torch.Tensor:
        """The gradient of `weight` from that of rows which all ranks read in one pass; a collective.

        Args:
            gradient: Of this rank's rows, in the order of its ids.
            asked: What `read` gave.
        """
        table, plan = self._table, asked.plan
        assert plan is not None
        sums = gradient.new_zeros((len(plan.ids), gradient.shape[1]))
        sums.index_add_(0, plan.inverse, gradient)
        name = f"gradients of `{table.name}`"

        def work(wire: Wire) -> torch.Tensor:
            announce(wire, Round(name, asked.number, table.parts), [], None)
            if wire.world.ranks == 1:
                return sums[:0]
            sent = sums[plan.far_at]
            received = wire.exchange(sent, asked.counts, asked.wanted)
            header_bytes = HEADER_BYTES * (wire.world.ranks - 1)
            table.traffic.note_round(header_bytes + received.nbytes, header_bytes + sent.nbytes)
            return received

        received = table.line.run(f"{name}, pass {asked.number:,}", work)
        own_at = [
            torch.arange(start, stop, dtype=torch.int64, device="cpu")
            for _, start, stop in plan.near
        ]
        at = torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *own_at])
        ids = torch.cat([plan.ids[at], asked.served]) - self.first
        rows = torch.cat([sums[at], received]) / self.ranks
        if self.sparse:
            return torch.sparse_coo_tensor(
                ids[None],
                rows,
                self.weight.shape,
                dtype=rows.dtype,
                device="cpu",
                check_invariants=False,
            )
        return torch.zeros_like(self.weight).index_add_(0, ids, rows)

    def extra_repr(self) -> str:
        """What `print(model)` says."""
        return f"{self.shape[0]:,}, {self.shape[1]}, rank {self.rank} of {self.ranks} has {len(self.weight):,}"


@dataclass(eq=False)
class Asked:
    """One pass as one rank remembers it until its backward pass."""

    number: int  # of the pass
    plan: GatherPlan | None = None  # what this rank asked for
    counts: list[int] = field(default_factory=list)  # of ids that went to each rank
    wanted: list[int] = field(default_factory=list)  # and that came from each
    served: torch.Tensor = field(  # the ids that came
        default_factory=lambda: torch.empty(0, dtype=torch.int64, device="cpu")
    )

    def note(self, counts: list[int], wanted: list[int], served: torch.Tensor) -> None:
        """Remember a round."""
        self.counts, self.wanted, self.served = counts, wanted, served


class _ReadRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _weight: torch.Tensor, table: LearnableTable, ids: torch.Tensor, number: int
    ) -> torch.Tensor:
        rows, ctx.asked = table.read(ids, number)
        ctx.table = table
        return rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.table.send_back(gradient, ctx.asked), None, None, None


def _begin_rows(
    first: int,
    stop: int,
    width: int,
    dtype: torch.dtype,
    seed: int,
    initial: Callable[[int, int], torch.Tensor] | None,
) -> torch.Tensor:
    """The rows that a table begins with, which do not depend on who owns them."""
    if initial is not None:
        rows = initial(first, stop)
        if tuple(rows.shape) != (stop - first, width):
            raise RowArgumentError(
                "initial", f"rows of shape {(stop - first, width)}", f"shape {tuple(rows.shape)}"
            )
        return rows.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
    rows = torch.empty((stop - first, width), dtype=dtype, device="cpu")
    for block in range(first // _BLOCK_ROWS, -(-stop // _BLOCK_ROWS)):
        generator = torch.Generator().manual_seed(mix(mix(seed) ^ mix(block + 1)))
        drawn = torch.randn(
            (_BLOCK_ROWS, width), generator=generator, dtype=torch.float32, device="cpu"
        )
        begin = block * _BLOCK_ROWS
        low, high = max(first, begin), min(stop, begin + _BLOCK_ROWS)
        rows[low - first : high - first] = drawn[low - begin : high - begin].to(dtype)
    return rows
