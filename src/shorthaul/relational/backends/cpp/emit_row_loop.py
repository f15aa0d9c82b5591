"""A `RowLoop` as C++: one loop over rows, a sweep over the finer rows of each for every level of
reductions that need one another (softmax: the maximum, the sum of the powers, the weighted sum).

The text runs for rows as wholes, or for one sweep over a part of one row: threads share the finer rows of
a hub (`shared_rows.h`). `loop_order` says what comes when, `emit_values` writes the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shorthaul.relational.backends.cpp.emit_values import SIMD, Place, ValueWriter, c_name, flat
from shorthaul.relational.backends.cpp.parameters import Kind, Parameter, write_parameters
from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.lowering.kernels import RowLoop

# Finer rows are summed in pieces of this many, and then the pieces: a float32 that has added up a hundred
# thousand edges of a hub has few bits left for the next one.
PIECE_ROWS = 512


@dataclass(frozen=True)
class LoopKernel:
    """The text of one function, its parameters, and what some of them stand for, by their names."""

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    ways: Mapping[str, tuple[Space, str]]  # index tensors
    leaves: Mapping[str, str]  # stored values that are read
    results: Mapping[str, str]  # stored values that are written
    masks: Mapping[str, str]  # dropout masks, by their streams


def emit_row_loop(
    name: str,
    work: RowLoop,
    program: Program,
    stored: Iterable[str],
    exported: Iterable[str],
    *,
    is_narrow: bool = False,
) -> LoopKernel:
    """The kernel of `work`; results that are not `exported` stay in registers.

    The rows of a small space are tiles, and its results their sums, not rounded yet.

    `is_narrow`: memory holds fewer bits than the kernel computes with.
    """
    order = SweepOrder(work, program, stored)
    return _LoopWriter(name, order, frozenset(exported), is_narrow).write()


class _LoopWriter:
    def __init__(
        self, name: str, order: SweepOrder, exported: frozenset[str], is_narrow: bool
    ) -> None:
        self.name, self.order, self.exported = name, order, exported
        self.work, self.program = order.work, order.program
        self.prefetches = False
        rounded = is_narrow and not order.work.space.is_small
        self.values = ValueWriter(order, exported if rounded else frozenset())

    def write(self) -> LoopKernel:
        row = Place(3)
        for number in range(self.order.count):
            self._write_sweep(row, number)
        for result in self.order.outer:
            self._write_result(row, result)
        parameters = self._parameters()
        return LoopKernel(
            self.name,
            self._frame(row, parameters),
            parameters,
            {name: way for way, name in self.values.ways.items()},
            {name: leaf for leaf, name in self.values.leaves.items()},
            {f"out_{c_name(r)}": r for r in self.work.results if r in self.exported},
            {name: mask for mask, name in self.values.masks.items()},
        )

    def _write_sweep(self, row: Place, number: int) -> None:
        now = self.order.reductions_in(number)
        sums = [each for each in now if self.program[each]["kind"] == "sum"]
        piece = Place(5, row)
        for reduction in now:
            self._start(reduction, c_name(reduction), row)
        for reduction in sums:
            self._start(reduction, _in_piece(reduction), piece)
        body = Place(6, row)
        self._write_kept(number, body)
        for result in self.order.inner_in(number):
            self.values.name(result, body)
            if result in self.exported:
                self._store(result, body, "f")
        for reduction in now:
            self._accumulate(reduction, body)
        piece.say("for (int64_t p = piece; p < piece_end; ++p) {")
        piece.say("  const int64_t f = members ? members[p] : p;")
        ahead = self.values.take_prefetches()
        self.prefetches |= bool(ahead)
        for line in ahead:
            piece.say(line)
        piece.lines += body.lines
        piece.say("}")
        for reduction in sums:
            piece.say(
                f"for (int i = 0; i < {self.program[reduction].size}; ++i) "
                f"{c_name(reduction)}[i] += {_in_piece(reduction)}[i];"
            )
        row.say(f"// sweep {number + 1}: {', '.join([*now, *self.order.inner_in(number)])}")
        row.say(f"if (part.sweep <= {number}) {{")
        row.say(f"  for (int64_t piece = begin; piece < end; piece += {PIECE_ROWS}) {{")
        row.say(f"    const int64_t piece_end = std::min<int64_t>(piece + {PIECE_ROWS}, end);")
        row.lines += piece.lines
        row.say("  }")
        row.say(f"  if (part.sweep == {number}) {{")
        for reduction in now:
            self._copy(row, "    ", f"part.made[{self._offset(reduction)} + i]", reduction)
        row.say("    return;")
        row.say("  }")
        if now:
            row.say("} else {")
        for reduction in now:
            self._copy(row, "  ", reduction, f"part.known[{self._offset(reduction)} + i]")
        row.say("}")
        for reduction in now:
            self._finish(reduction, row)

    def _write_kept(self, number: int, body: Place) -> None:
        """Read what earlier sweeps kept, keep what later ones read."""
        for value in self.order.kept_before(number):
            body.say(
                f"const real* {c_name(value)} = "
                f"kept_{c_name(value)} + (p - start) * {self.program[value].size};"
            )
            body.names[value] = (c_name(value), False)
        for value in self.order.kept_in(number):
            self.values.name(value, body)
            size = self.program[value].size
            element = self.values.element(value, body)
            body.say(
                f"for (int i = 0; i < {size}; ++i) "
                f"kept_{c_name(value)}[(p - start) * {size} + i] = {element};"
            )

    def _start(self, reduction: str, array: str, place: Place) -> None:
        step = self.program[reduction]
        start = {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}[step["kind"]]
        place.say(f"real {array}[{max(1, step.size)}];")
        place.say(f"for (int i = 0; i < {step.size}; ++i) {array}[i] = {start};")

    def _accumulate(self, reduction: str, body: Place) -> None:
        step = self.program[reduction]
        operand = step.operands[0]
        if step["kind"] == "sum":
            self.values.loop(
                body,
                step.shape,
                lambda at: (
                    f"{_in_piece(reduction)}[{flat(step.shape, at)}] += "
                    f"{self.values.expression(operand, at, body)};"
                ),
                prepare=reduction,
            )
            return
        # Written so that a NaN wins, as in PyTorch.
        sign = ">" if step["kind"] == "max" else "<"
        self.values.name(operand, body)
        element = self.values.element(operand, body)
        name = f"{c_name(reduction)}[i]"
        body.say(SIMD)
        body.say(
            f"for (int i = 0; i < {step.size}; ++i) "
            f"{name} = ({element} {sign} {name} || {element} != {element}) ? {element} : {name};"
        )

    def _finish(self, reduction: str, row: Place) -> None:
        step = self.program[reduction]
        if step["kind"] != "sum":  # nothing to choose from: 0, as the sum of nothing
            row.say(
                f"if (start == stop) "
                f"for (int i = 0; i < {step.size}; ++i) {c_name(reduction)}[i] = 0;"
            )
        row.names[reduction] = (c_name(reduction), False)
        self.values.round(reduction, row)

    def _write_result(self, row: Place, result: str) -> None:
        if self.program[result].operation != "reduce":
            self.values.name(result, row)
        if result in self.exported:
            self._store(result, row, "row")

    def _store(self, result: str, place: Place, at: str) -> None:
        size = self.program[result].size
        element = f"{c_name(result)}[i]"
        if not self.work.space.is_small:  # the sums of tiles are added up first
            element = f"Number::store({element})"
        place.say(
            f"for (int i = 0; i < {size}; ++i) out_{c_name(result)}[{at} * {size} + i] = {element};"
        )

    def _frame(self, row: Place, parameters: Iterable[Parameter]) -> str:
        heading = [f"// {', '.join(self.work.results)}", f"// rows = {self.work.space.value}"]
        signature = f"void {self.name}({write_parameters(parameters)}) {{"
        go_through = [
            "  std::atomic<int64_t> next_chunk{0};",
            "  shorthaul::on_each_thread(chunks < threads ? chunks : threads, [&](int64_t, int64_t) {",
        ]
        take_chunk = "    for (int64_t chunk; (chunk = next_chunk.fetch_add(1)) < chunks;)"
        if self.work.fine is None:
            heading[-1] += "; threads take chunks of about equal work"
            each_row = "for (int64_t row = chunk_rows[chunk]; row < chunk_rows[chunk + 1]; ++row) {"
            lines = [signature, *go_through, take_chunk, f"    {each_row}", *row.lines, "    }"]
            return "\n".join([*heading, *lines, "  });", "}", ""])
        heading[-1] += (
            f", with the {self.work.fine.value} rows of each; threads take chunks of about"
        )
        heading.append(
            "// equal work, then parts of the rows that were left out because they have most of it"
        )
        table = ", ".join(self._describe(each) for each in self.order.reductions)
        lines = [
            signature,
            "  shorthaul::Hubs hubs(pointers[chunk_rows[chunks]] - pointers[chunk_rows[0]]);",
            "  const auto work = [=, &hubs](std::vector<real>& scratch, int64_t first, int64_t last,",
            "                               const shorthaul::RowPart<real>& part) {",
            "    for (int64_t row = first; row < last; ++row) {",
            *self._open_row(),
            *row.lines,
            "    }",
            "  };",
            *go_through,
            "    std::vector<real> scratch;",
            take_chunk,
            "      work(scratch, chunk_rows[chunk], chunk_rows[chunk + 1], {});",
            "  });",
            f"  static constexpr shorthaul::Reduction reductions[] = {{{table}}};",
            f"  shorthaul::share_hubs<real>(hubs, pointers, {self.order.count}, reductions, "
            f"{self._sizes(self.order.reductions)}, {self._sizes(self.order.kept)}, threads, work);",
        ]
        return "\n".join([*heading, *lines, "}", ""])

    def _open_row(self) -> list[str]:
        """What comes before the sweeps of one row."""
        lines = [
            "const int64_t start = pointers[row], stop = pointers[row + 1];",
            "if (part.sweep < 0 && hubs.contains(stop - start)) {",
            "  hubs.note(row);",
            "  continue;",
            "}",
            "const int64_t begin = part.sweep < 0 ? start : part.begin;",
            "const int64_t end = part.sweep < 0 ? stop : part.end;",
        ]
        if self.prefetches:
            lines.append("const int64_t chunk_stop = pointers[last];")
        if self.order.kept:
            size = self._sizes(self.order.kept)
            lines += [
                f"if (part.sweep < 0 && int64_t(scratch.size()) < (stop - start) * {size})",
                f"  scratch.resize((stop - start) * {size});",
                "real* const kept = part.sweep < 0 ? scratch.data() : part.kept;",
            ]
        before = 0
        for value in self.order.kept:
            lines.append(f"real* const kept_{c_name(value)} = kept + (stop - start) * {before};")
            before += self.program[value].size
        return [f"      {line}" for line in lines]

    def _describe(self, reduction: str) -> str:
        """A line of the table of reductions."""
        step = self.program[reduction]
        kind = f"shorthaul::Reduction::{step['kind'].upper()}"
        sweep = self.order.level(step.operands[0])
        return f"{{{kind}, {sweep}, {self._offset(reduction)}, {step.size}}}"

    def _offset(self, reduction: str) -> int:
        """Where the elements of a reduction begin among those of all."""
        found = self.order.reductions
        return self._sizes(found[: found.index(reduction)])

    def _sizes(self, values: Iterable[str]) -> int:
        return sum(self.program[each].size for each in values)

    def _copy(self, row: Place, indent: str, to: str, source: str) -> None:
        """Copy a reduction to or from the memory of a hub; a name stands for its array."""
        (reduction,) = (each for each in (to, source) if each in self.order.reductions)
        size = self.program[reduction].size
        left, right = (f"{c_name(each)}[i]" if each == reduction else each for each in (to, source))
        row.say(f"{indent}for (int i = 0; i < {size}; ++i) {left} = {right};")

    def _parameters(self) -> tuple[Parameter, ...]:
        found = [Parameter("chunk_rows", Kind.INDEX), Parameter("chunks", Kind.NUMBER)]
        if self.order.has_finer:
            found += [Parameter("pointers", Kind.INDEX), Parameter("members", Kind.INDEX, True)]
        found += [Parameter(name, Kind.INDEX) for name in self.values.ways.values()]
        found += [Parameter(name, Kind.STORED) for name in self.values.leaves.values()]
        made = Kind.SUM if self.work.space.is_small else Kind.MADE
        written = (r for r in self.work.results if r in self.exported)
        found += [Parameter(f"out_{c_name(r)}", made) for r in written]
        found += [Parameter(name, Kind.NUMBER) for name in self.values.masks.values()]
        return (*found, Parameter("targets", Kind.NUMBER))


def _in_piece(reduction: str) -> str:
    """The array with a sum over the current piece."""
    return f"piece_{c_name(reduction)}"
