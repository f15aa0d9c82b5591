"""A `RowLoop` as a Triton kernel: one program per row, which sweeps over the row's finer rows in
blocks, once for every level of reductions that need one another.

Rows are launched in buckets by how many finer rows they have, so that a program's blocks fit them: see
`triton.BUCKETS`. A loop that reduces nothing takes a block of rows per program instead.

`sweeps` says what comes when, `emit_triton_values` writes the values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.backends.triton.emit_values import Place, Types, ValueWriter
from shorthaul.relational.backends.triton.indices import flat
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering.kernels import RowLoop

_NUMBERS = ("rows", "targets")  # passed by value


@dataclass(frozen=True)
class TritonLoop:
    """The text of one kernel, and what must be passed to it."""

    name: str
    text: str
    has_finer: bool
    ways: tuple[tuple[Space, str], ...]  # index tensors, in order
    leaves: tuple[str, ...]  # stored values that are read
    results: tuple[str, ...]  # stored values that are written
    masks: tuple[str, ...]  # dropout masks, by their streams
    widest: int  # elements of a row of the largest tensor


def emit_triton_loop(
    name: str,
    work: RowLoop,
    program: Program,
    stored: Iterable[str],
    exported: Iterable[str],
    types: Types,
) -> TritonLoop:
    """The kernel of `work`; results that are not `exported` stay in registers."""
    return _LoopWriter(name, SweepOrder(work, program, stored), frozenset(exported), types).write()


class _LoopWriter:
    def __init__(
        self, name: str, order: SweepOrder, exported: frozenset[str], types: Types
    ) -> None:
        self.name, self.order, self.exported, self.real = name, order, exported, types.real
        self.work, self.program = order.work, order.program
        self.values = ValueWriter(order, types, exported)

    def write(self) -> TritonLoop:
        if self.order.has_finer:
            row = Place(1, "row", "1")
        else:
            row = Place(1, "row", "ROWS", mask="is_row")
        for number in range(self.order.count):
            self._write_sweep(row, number)
        for result in self.order.outer:
            self._write_result(row, result)
        return TritonLoop(
            self.name,
            self._frame(row),
            self.order.has_finer,
            tuple(self.values.ways),
            tuple(self.values.leaves),
            tuple(r for r in self.work.results if r in self.exported),
            tuple(self.values.masks),
            self.values.widest,
        )

    def _write_sweep(self, row: Place, number: int) -> None:
        now = self.order.reductions_in(number)
        body = Place(2, "f", "FINE", mask="is_fine", suffix=f"_in{number + 1}", outer=row)
        for result in self.order.inner_in(number):
            variable = self.values.name(result, body)
            if result in self.exported:
                self._store(result, variable, body)
        for reduction in now:
            self._accumulate(reduction, body)
        for reduction in now:
            self._start(reduction, row)
        row.say(f"# sweep {number + 1}: {', '.join([*now, *self.order.inner_in(number)])}")
        row.say("for p in range(start, stop, FINE):")
        row.say("    f = p + tl.arange(0, FINE)")
        row.say("    is_fine = f < stop")
        row.say("    if HAS_MEMBERS:")
        row.say("        f = tl.load(members + f, mask=is_fine, other=0).to(tl.int64)")
        row.lines += body.lines
        for reduction in now:
            self._finish(reduction, row)

    def _start(self, reduction: str, row: Place) -> None:
        step = self.program[reduction]
        start = {"sum": "0", "max": '-float("inf")', "min": 'float("inf")'}[step["kind"]]
        extents = self.values.extents(step.shape, row)
        row.say(f"{reduction}_ = tl.full({extents}, {start}, {self.real})")

    def _accumulate(self, reduction: str, body: Place) -> None:
        step = self.program[reduction]
        operand = self.values.name(step.operands[0], body)
        mask = self.values.spread("is_fine", step.shape)
        if step["kind"] == "sum":
            body.say(
                f"{reduction}_ += tl.sum(tl.where({mask}, {operand}, 0.0), axis=0, keep_dims=True)"
            )
            return
        # Written so that a NaN wins, as in PyTorch.
        kind = step["kind"]
        worst = '-float("inf")' if kind == "max" else 'float("inf")'
        body.say(f"{reduction}_nan = {mask} & ({operand} != {operand})")
        body.say(
            f"{reduction}_best = tl.{kind}(tl.where({mask} & ({operand} == {operand}), "
            f"{operand}, {worst}), axis=0, keep_dims=True)"
        )
        body.say(
            f"{reduction}_nan = tl.max({reduction}_nan.to(tl.int32), axis=0, keep_dims=True) > 0"
        )
        body.say(
            f"{reduction}_ = tl.where({reduction}_nan | ({reduction}_ != {reduction}_), "
            f'float("nan"), tl.{kind}imum({reduction}_, {reduction}_best))'
        )

    def _finish(self, reduction: str, row: Place) -> None:
        if self.program[reduction]["kind"] != "sum":  # nothing to choose from: 0, as the empty sum
            row.say(f"{reduction}_ = tl.where(start < stop, {reduction}_, 0.0)")
        row.names[reduction] = f"{reduction}_"
        self.values.round(reduction, row)

    def _write_result(self, row: Place, result: str) -> None:
        variable = self.values.name(result, row)
        if result in self.exported:
            self._store(result, variable, row)

    def _store(self, result: str, variable: str, place: Place) -> None:
        shape, size = self.program[result].shape, self.program[result].size
        index = f"{self.values.spread(place.lead, shape)} * {size}"
        offset = flat(shape, self.values.axes(shape))
        masks = self.values.inside(shape)
        if place.mask:
            masks.insert(0, self.values.spread(place.mask, shape))
        mask = f", mask={' & '.join(masks)}" if masks else ""
        place.say(
            f"tl.store(out_{result} + {index} + {offset}, "
            f"{variable}.to(out_{result}.dtype.element_ty){mask})"
        )

    def _frame(self, row: Place) -> str:
        over = f", with the {self.work.fine.value} rows of each" if self.work.fine else ""
        numbers = [*_NUMBERS, *self.values.masks.values()]
        lines = [
            f"# {', '.join(self.work.results)}",
            f"# rows = {self.work.space.value}{over}",
            f"@triton.jit(do_not_specialize={numbers!r})",
            f"def {self.name}(",
            textwrap.indent(textwrap.fill(", ".join(self._parameters()), 96), "    "),
            "):",
            "    one = tl.arange(0, 1)  # the only row of what has one",
        ]
        if self.order.has_finer:
            lines += [
                "    this = tl.load(bucket + tl.program_id(0)).to(tl.int64)",
                "    row = this + tl.arange(0, 1)",
                "    start = tl.load(pointers + this).to(tl.int64)",
                "    stop = tl.load(pointers + this + 1).to(tl.int64)",
            ]
        else:
            lines += [
                "    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)",
                "    is_row = row < rows",
            ]
        for frame in self.values.frames.values():
            lines += [f"    {line}" for line in frame]
        return "\n".join([*lines, *row.lines, "", ""])

    def _parameters(self) -> list[str]:
        """In the order in which `triton` passes them."""
        found = ["bucket", "pointers", "members"] if self.order.has_finer else []
        found += [*self.values.ways.values(), *self.values.leaves.values()]
        found += [f"out_{r}" for r in self.work.results if r in self.exported]
        found += [*_NUMBERS, *self.values.masks.values()]
        constants = ("FINE", "HAS_MEMBERS") if self.order.has_finer else ("ROWS",)
        return [*found, *(f"{each}: tl.constexpr" for each in constants)]
