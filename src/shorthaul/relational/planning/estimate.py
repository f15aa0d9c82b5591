"""What every kernel of a plan costs on a graph, before it runs: bytes, floating operations, time at best.

Counted from the plan and the sizes of the graph alone::

    moved     every array that a kernel needs once, values and indexes: what must come from memory
    gathered  the same, with rows that are read through an index counted as often as they are read
    flops     multiplications and additions; exp and its kin count as one; what a loop computes again in
              a later sweep counts once
    held      values in memory when the kernel is done, without the layer's inputs

The time at best (the roofline) is the longer of moving `moved` at the memory's speed and doing `flops` at
the processor's: no schedule is faster on arrays that do not lie in a cache already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from shorthaul.jit.peaks import measure_memory, measure_multiply_adds
from shorthaul.relational.backends.cpp.emit_products import ROWS_PER_OUTER_TILE
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.lowering.kernels import (
    READ_THROUGH,
    OuterSum,
    Plan,
    Product,
    RowLoop,
    TorchStep,
    Work,
    base_of,
    results_of,
)
from shorthaul.relational.lowering.lifetimes import find_exported, find_last_uses
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.units import format_bytes, format_seconds

MEASURED_STREAM_BYTES = 2**28  # beyond the caches of one socket
WIDE_BYTES = 4  # numbers of this size and more are added up as they are stored


@dataclass(frozen=True)
class Machine:
    """The two speeds that bound every kernel."""

    bytes_per_second: float  # of memory
    flops_per_second: float  # of float32

    @classmethod
    def measure(cls, stream_bytes: int = MEASURED_STREAM_BYTES) -> Machine:
        """This machine with PyTorch's threads: reading memory, and float32 multiply-adds."""
        memory = measure_memory(stream_bytes)
        fastest = max(memory.read.all_threads, memory.copy.all_threads)
        return cls(fastest, measure_multiply_adds().all_threads)

    def __str__(self) -> str:
        return (
            f"{self.bytes_per_second / 1e9:.3g} GB/s and {self.flops_per_second / 1e9:.3g} GFLOP/s"
        )


@dataclass(frozen=True)
class KernelEstimate:
    """What one kernel reads, writes and computes."""

    title: str
    direction: str  # "forward" or "backward"
    reads: tuple[tuple[str, int], ...]  # (value, bytes of the whole array)
    writes: tuple[tuple[str, int], ...]
    index_bytes: int
    temporary_bytes: int  # sums of tiles: written, then read
    gathered_bytes: int
    flops: int
    held_bytes: int

    @property
    def moved_bytes(self) -> int:
        """Every array once."""
        values = sum(count for _, count in (*self.reads, *self.writes))
        return values + self.index_bytes + 2 * self.temporary_bytes

    def seconds(self, machine: Machine) -> float:
        """The shortest time that the machine's two speeds allow."""
        return max(
            self.moved_bytes / machine.bytes_per_second, self.flops / machine.flops_per_second
        )


@dataclass(frozen=True)
class Estimate:
    """What a plan costs on a graph."""

    kernels: tuple[KernelEstimate, ...]

    def of(self, direction: str) -> Estimate:
        """The forward or the backward part."""
        return Estimate(tuple(each for each in self.kernels if each.direction == direction))

    @property
    def moved_bytes(self) -> int:
        """Every array of every kernel once."""
        return sum(each.moved_bytes for each in self.kernels)

    @property
    def gathered_bytes(self) -> int:
        """Rows counted as often as they are read."""
        return sum(each.gathered_bytes for each in self.kernels)

    @property
    def flops(self) -> int:
        """Floating operations of all kernels."""
        return sum(each.flops for each in self.kernels)

    @property
    def peak_bytes(self) -> int:
        """The most that values hold after any kernel, without the layer's inputs."""
        return max((each.held_bytes for each in self.kernels), default=0)

    def seconds(self, machine: Machine) -> float:
        """The roofline: kernels run one after the other, each in its shortest time."""
        return sum(each.seconds(machine) for each in self.kernels)

    def text(self, machine: Machine | None = None) -> str:
        """A table with a row per kernel and a total, as `explain` prints it."""
        rows = [["", "moved", "gathered", "MFLOP", "FLOP/byte", "held"]]
        for direction in ("forward", "backward"):
            part = self.of(direction)
            if part.kernels:
                rows += [_row(f"{direction}: {each.title}", each) for each in part.kernels]
                rows.append([*_row(f"{direction} in all", part), format_bytes(part.peak_bytes)])
        for row, each in zip(rows[1:], self._lines(), strict=True):
            if isinstance(each, KernelEstimate):
                row.append(format_bytes(each.held_bytes))
            if machine is not None:
                row.append(format_seconds(each.seconds(machine)))
        if machine is not None:
            rows[0].append("at best")
        lines = _align(rows)
        if machine is not None:
            lines.append(f"at best: with {machine}")
        return "\n".join(lines)

    def _lines(self) -> Iterator[KernelEstimate | Estimate]:
        for direction in ("forward", "backward"):
            part = self.of(direction)
            if part.kernels:
                yield from part.kernels
                yield part


def _row(title: str, each: KernelEstimate | Estimate) -> list[str]:
    moved = each.moved_bytes
    return [
        title,
        format_bytes(moved),
        format_bytes(each.gathered_bytes),
        f"{each.flops / 1e6:.2f}",
        f"{each.flops / moved:.2f}" if moved else "-",
    ]


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            f"{text:<{width}}" if column == 0 else f"{text:>{width}}"
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def estimate(
    plan: Plan, sizes: GraphSizes, *, value_bytes: int = 4, index_bytes: int = 4
) -> Estimate:
    """The cost of every kernel of `plan` on a graph of these sizes.

    `value_bytes` and `index_bytes` are those of one number and of one index.
    """
    return Estimate(tuple(_Counter(plan, sizes, value_bytes, index_bytes).count()))


class _Counter:
    """Goes through the kernels in order, with the values that memory holds on the way."""

    def __init__(self, plan: Plan, sizes: GraphSizes, value_bytes: int, index_bytes: int) -> None:
        self.plan, self.program, self.sizes = plan, plan.program, sizes
        self.value_bytes, self.index_bytes = value_bytes, index_bytes
        self.stored, self.exported = set(plan.stored), find_exported(plan)

    def count(self) -> Iterator[KernelEstimate]:
        last_uses = find_last_uses(self.plan)
        held: dict[str, int] = {}
        for number, work in enumerate(self.plan.forward + self.plan.backward):
            is_forward = number < len(self.plan.forward)
            writes = {name: self._array(name) for name in results_of(work) if name in self.exported}
            held |= writes
            index, temporary = self._index_bytes(work), self._temporary_bytes(work)
            reads, again = self._reads(work)
            gathered = sum(again.values()) + sum(writes.values()) + index + 2 * temporary
            yield KernelEstimate(
                _title(work),
                "forward" if is_forward else "backward",
                tuple(reads.items()),
                tuple(writes.items()),
                index,
                temporary,
                gathered,
                self._flops(work),
                sum(held.values()),
            )
            for name in last_uses.get(number, ()):
                held.pop(name, None)

    def _array(self, name: str) -> int:
        """Bytes of a whole value."""
        step = self.program[name]
        return self.sizes[step.space] * step.size * self.value_bytes

    # What a kernel reads: (whole arrays, rows as often as they are read)

    def _reads(self, work: Work) -> tuple[dict[str, int], dict[str, int]]:
        once: dict[str, int] = {}
        again: dict[str, int] = {}
        for name, rows in self._operands(work):
            base = base_of(self.program, name)
            once[base] = self._array(base)
            read = rows * self.program[name].size * self.value_bytes
            again[base] = again.get(base, 0) + read
        return once, again

    def _operands(self, work: Work) -> Iterator[tuple[str, int]]:
        """Each stored value that a kernel reads, and how many of its rows it reads."""
        if isinstance(work, TorchStep):
            for name in self.program[work.step].operands:
                yield name, self.sizes[self.program[name].space]
        elif isinstance(work, Product):
            yield work.x.value, self.sizes[self.program[work.step].space]
            yield work.weight, self.sizes[self.program[work.weight].space]
        elif isinstance(work, OuterSum):
            rows = self.sizes[self.program[self.program[work.step].operands[0]].space]
            yield work.x.value, rows
            yield work.y.value, rows
        else:
            for name, _, rows in self._leaves(work):
                yield name, rows

    def _leaves(self, work: RowLoop) -> Iterator[tuple[str, str | None, int]]:
        """What a loop reads, along which way, and how many rows of it."""
        made = set(work.results)
        found: dict[tuple[str, str | None], int] = {}
        for step in self._computed(work):
            for operand in step.operands:
                is_read = operand in self.stored and not self._is_read_through(operand)
                if not is_read or base_of(self.program, operand) in made:
                    continue
                way = step["way"] if step.operation == "expand" else None
                # Along the loop's own way a row is read once and serves all the finer rows of it.
                is_own = way is None or way == work.way
                rows = self.sizes[self.program[operand].space if is_own else step.space]
                found[operand, way] = max(rows, found.get((operand, way), 0))
        for (name, way), rows in found.items():
            yield name, way, rows

    # Indexes, and sums of tiles

    def _index_bytes(self, work: Work) -> int:
        if isinstance(work, TorchStep):
            return 0
        if isinstance(work, RowLoop):
            return self._loop_index_bytes(work)
        step = self.program[work.step]
        space = step.space if isinstance(work, Product) else self.program[step.operands[0]].space
        sides = (work.x,) if isinstance(work, Product) else (work.x, work.y)
        lists = sum(side.way is not None for side in sides)
        lists += not _is_consecutive(space, step["way"])
        return lists * self.sizes[space] * self.index_bytes

    def _loop_index_bytes(self, work: RowLoop) -> int:
        rows = self.sizes[work.fine or work.space]
        ways = {way for _, way, _ in self._leaves(work) if way not in (None, "all", work.way)}
        count = len(ways) * rows
        if work.fine is not None and work.way is not None:
            count += self.sizes[work.space] + 1
            count += 0 if _is_consecutive(work.fine, work.way) else rows
        return count * self.index_bytes

    def _temporary_bytes(self, work: Work) -> int:
        """Sums of tiles of rows, one after the other for each type: about this many tiles.

        A type with one tile is added up where it belongs, unless that is narrower than a sum.
        """
        if isinstance(work, OuterSum):
            names, fine = [work.step], self.program[self.program[work.step].operands[0]].space
        elif isinstance(work, RowLoop) and work.space.is_small and work.fine is not None:
            names, fine = list(work.results), work.fine
        else:
            return 0
        rows = self.sizes[fine]
        total = 0
        for name in names:
            step = self.program[name]
            full = rows // ROWS_PER_OUTER_TILE
            is_direct = isinstance(work, OuterSum) and self.value_bytes >= WIDE_BYTES
            tiles = full + min(self.sizes[step.space], full if is_direct else rows)
            total += tiles * step.size * max(self.value_bytes, WIDE_BYTES)
        return total

    # Floating operations

    def _flops(self, work: Work) -> int:
        if isinstance(work, RowLoop):
            return sum(self._step_flops(step) for step in self._computed(work))
        return self._step_flops(self.program[work.step])

    def _computed(self, work: RowLoop) -> Iterator[Step]:
        """The steps that a loop takes, each once."""
        waiting, seen = list(work.results), set(work.results)
        while waiting:
            step = self.program[waiting.pop()]
            yield step
            if step.operation in READ_THROUGH:
                continue
            for operand in step.operands:
                is_made = operand not in self.stored or self._is_read_through(operand)
                if operand not in seen and is_made:
                    seen.add(operand)
                    waiting.append(operand)

    def _is_read_through(self, name: str) -> bool:
        return self.program[name].operation in READ_THROUGH

    def _step_flops(self, step: Step) -> int:
        rows = self.sizes[step.space]
        made_from = [self.program[each] for each in step.operands]
        if step.operation in POINTWISE:
            return rows * step.size
        if step.operation == "sum":
            return rows * made_from[0].size
        if step.operation == "reduce":
            return self.sizes[made_from[0].space] * step.size
        if step.operation == "linear":
            return 2 * rows * made_from[0].size * step.shape[-1]
        if step.operation == "outer":
            x, y = made_from
            return 2 * self.sizes[x.space] * prod(x.shape) * y.shape[-1]
        return 0  # moving, repeating and masking compute nothing


def _title(work: Work) -> str:
    if isinstance(work, RowLoop):
        return f"loop over {work.space.value} rows: {', '.join(work.results)}"
    kind = {Product: "product", OuterSum: "outer sum", TorchStep: "torch"}[type(work)]
    return f"{kind}: {work.step}"


def _is_consecutive(fine: Space, way: str | None) -> bool:
    """Whether the rows of each type or target lie one after the other, so that no list is read."""
    if way in (None, "all", "type"):
        return True
    if fine is Space.EDGE:
        return way == "target"
    return way == "relation"
