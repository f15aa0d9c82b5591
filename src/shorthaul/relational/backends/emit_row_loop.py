"""A `RowLoop` as C++: one loop over rows, a sweep over the finer rows of each for every level of
reductions that need one another (softmax: the maximum, the sum of the powers, the weighted sum).

Names come from the author's program. A value is an array as wide as one row of it, or an expression
inside the loop that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shorthaul.relational.ir import Program, Shape, Step
from shorthaul.relational.lowering import RowLoop, base_of
from shorthaul.relational.pointwise import POINTWISE
from shorthaul.relational.spaces import Space

SCRATCH_WIDTH = 16  # values up to this wide are kept between the sweeps of one row
PREFETCH_BYTES = 64  # rows narrower than a cache line are not worth asking for ahead
PREFETCH_AHEAD = 6


@dataclass(frozen=True)
class LoopKernel:
    """The text of one function, and what must be passed to it."""

    name: str
    text: str
    ways: tuple[tuple[Space, str], ...]  # index tensors, in order
    leaves: tuple[str, ...]  # stored values that are read
    results: tuple[str, ...]  # stored values that are written
    masks: tuple[str, ...]  # dropout masks, by their streams


@dataclass
class _Place:
    """Lines of code at one depth, and the values that have a name there."""

    indent: int
    outer: _Place | None = None
    lines: list[str] = field(default_factory=list)
    names: dict[str, tuple[str, bool]] = field(default_factory=dict)  # value -> (array, is stored)

    def say(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    def find(self, value: str) -> tuple[str, bool] | None:
        return self.names.get(value) or (self.outer.find(value) if self.outer else None)


def emit_row_loop(
    name: str, work: RowLoop, program: Program, stored: Iterable[str], exported: Iterable[str]
) -> LoopKernel:
    """The kernel of `work`; results that are not `exported` stay in registers."""
    return _LoopWriter(name, work, program, set(stored), set(exported)).write()


class _LoopWriter:
    def __init__(
        self, name: str, work: RowLoop, program: Program, stored: set[str], exported: set[str]
    ) -> None:
        self.name, self.work, self.program = name, work, program
        self.stored, self.exported = stored, exported
        self.ways: dict[tuple[Space, str], str] = {}
        self.leaves: dict[str, str] = {}
        self.masks: dict[str, str] = {}
        self.uses: dict[str, int] = {}
        self.levels: dict[str, int] = {}
        self.scratch: dict[str, int] = {}  # value -> its sweep
        self.prefetched: list[tuple[str, str, int]] = []
        self.has_finer = work.fine is not None
        self.inner = [r for r in work.results if self._is_inner(r)]
        self.outer_results = [r for r in work.results if not self._is_inner(r)]
        self._count_uses()

    # What depends on what

    def _is_inner(self, name: str) -> bool:
        """Whether a result has a row per finer row."""
        return self.program[name].space is self.work.fine is not None and (
            self.program[name].space is not self.work.space
        )

    def _is_local(self, name: str) -> bool:
        return base_of(self.program, name) in self.work.results if name in self.stored else True

    def _is_leaf(self, name: str) -> bool:
        """Whether the value is read from memory, not made here."""
        return name in self.stored and not self._is_local(name)

    def _count_uses(self) -> None:
        waiting = list(self.work.results)
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for operand in self.program[name].operands:
                self.uses[operand] = self.uses.get(operand, 0) + 1
                if not self._is_leaf(operand) and self.program[name].operation != "expand":
                    waiting.append(operand)

    def _level(self, name: str) -> int:
        """The sweep after which a row's value is known; the sweep in which a finer row's is."""
        if name not in self.levels:
            self.levels[name] = self._find_level(self.program[name])
        return self.levels[name]

    def _find_level(self, step: Step) -> int:
        if self._is_leaf(step.name):
            return 0
        if step.operation == "reduce" and step.name in self.work.results:
            return self._level(step.operands[0]) + 1
        if step.operation == "expand":
            own = step.space is self.work.fine and step["way"] == self.work.way
            return self._level(step.operands[0]) if own and self._is_local(step.operands[0]) else 0
        return max((self._level(each) for each in step.operands), default=0)

    # The whole function

    def write(self) -> LoopKernel:
        row = _Place(3)
        sweeps = 0
        if self.has_finer:
            reductions = [r for r in self.outer_results if self.program[r].operation == "reduce"]
            targets = [self.program[r].operands[0] for r in reductions] + self.inner
            sweeps = 1 + max((self._level(each) for each in targets), default=-1)
            self._choose_scratch(targets)
            for number in range(sweeps):
                self._write_sweep(row, number, reductions)
        for result in self.outer_results:
            self._write_result(row, result)
        return LoopKernel(
            self.name,
            self._frame(row),
            tuple(self.ways),
            tuple(self.leaves),
            tuple(r for r in self.work.results if r in self.exported),
            tuple(self.masks),
        )

    def _choose_scratch(self, targets: Sequence[str]) -> None:
        """Narrow values of an earlier sweep that a later one needs are kept for it."""
        for target in targets:
            level = self._level(target)
            waiting = [target]
            while waiting:
                name = waiting.pop()
                step = self.program[name]
                if self._is_leaf(name) or step.operation == "expand":
                    continue
                if self._level(name) < level and step.size <= SCRATCH_WIDTH:
                    self.scratch[name] = self._level(name)
                    continue
                waiting.extend(step.operands)

    def _write_sweep(self, row: _Place, number: int, reductions: Sequence[str]) -> None:
        now = [r for r in reductions if self._level(self.program[r].operands[0]) == number]
        for reduction in now:
            step = self.program[reduction]
            start = {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}[step["kind"]]
            row.say(f"real {_c(reduction)}[{max(1, step.size)}];")
            row.say(f"for (int i = 0; i < {step.size}; ++i) {_c(reduction)}[i] = {start};")
        body = _Place(4, row)
        for value, sweep in self.scratch.items():
            if sweep < number:
                body.say(
                    f"const real* {_c(value)} = "
                    f"scratch_{_c(value)}.data() + (p - start) * {self.program[value].size};"
                )
                body.names[value] = (_c(value), False)
        for value in [v for v, sweep in self.scratch.items() if sweep == number]:
            self._name(value, body)
            size = self.program[value].size
            body.say(
                f"for (int i = 0; i < {size}; ++i) "
                f"scratch_{_c(value)}[(p - start) * {size} + i] = {self._element(value, body)};"
            )
        for result in self.inner:
            if self._level(result) == number:
                self._name(result, body)
                if result in self.exported:
                    self._store(result, body, "f")
        for reduction in now:
            self._accumulate(reduction, body)
        row.say(f"// sweep {number + 1}: {', '.join([*now, *self._made_in(number)])}")
        row.say("for (int64_t p = start; p < stop; ++p) {")
        row.say("  const int64_t f = members ? members[p] : p;")
        for line in self._prefetches():
            row.say(line)
        row.lines += body.lines
        row.say("}")
        for reduction in now:
            step = self.program[reduction]
            if step["kind"] != "sum":  # nothing to choose from: 0, as the sum of nothing
                row.say(
                    f"if (start == stop) "
                    f"for (int i = 0; i < {step.size}; ++i) {_c(reduction)}[i] = 0;"
                )
            row.names[reduction] = (_c(reduction), False)

    def _made_in(self, number: int) -> list[str]:
        return [each for each in self.inner if self._level(each) == number]

    def _prefetches(self) -> list[str]:
        if not self.prefetched:
            return []
        lines = [f"  if (p + {PREFETCH_AHEAD} < stop) {{"]
        ahead = f"p + {PREFETCH_AHEAD}"
        lines.append(f"    const int64_t next = members ? members[{ahead}] : {ahead};")
        for leaf, way, size in self.prefetched:
            lines.append(
                f"    for (int i = 0; i < {size}; i += 64 / int(sizeof(Stored))) "
                f"__builtin_prefetch({leaf} + int64_t({way}[next]) * {size} + i);"
            )
        self.prefetched = []
        return [*lines, "  }"]

    def _accumulate(self, reduction: str, body: _Place) -> None:
        step = self.program[reduction]
        operand = step.operands[0]
        if step["kind"] == "sum":
            self._loop(
                body,
                step.shape,
                lambda at: (
                    f"{_c(reduction)}[{_flat(step.shape, at)}] += "
                    f"{self._expression(operand, at, body)};"
                ),
                prepare=reduction,
            )
            return
        # Written so that a NaN wins, as in PyTorch.
        sign = ">" if step["kind"] == "max" else "<"
        self._name(operand, body)
        element = self._element(operand, body)
        body.say(
            f"for (int i = 0; i < {step.size}; ++i) if ({element} {sign} {_c(reduction)}[i] || "
            f"std::isnan({element})) {_c(reduction)}[i] = {element};"
        )

    def _write_result(self, row: _Place, result: str) -> None:
        step = self.program[result]
        if step.operation != "reduce":
            self._name(result, row)
        if result in self.exported:
            self._store(result, row, "row")

    def _store(self, result: str, place: _Place, at: str) -> None:
        size = self.program[result].size
        place.say(
            f"for (int i = 0; i < {size}; ++i) "
            f"out_{_c(result)}[{at} * {size} + i] = Number::store({_c(result)}[i]);"
        )

    # Values

    def _element(self, value: str, place: _Place) -> str:
        found = place.find(base_of(self.program, value)) or place.find(value)
        assert found is not None, value
        return f"Number::load({found[0]}[i])" if found[1] else f"{found[0]}[i]"

    def _name(self, value: str, place: _Place) -> None:
        """Make sure that the value is an array that can be read here."""
        if self._locate(value, place) is not None:
            return
        step = self.program[value]
        array = _c(value)
        if step.operation == "reshape":
            self._name(step.operands[0], place)
            found = self._locate(step.operands[0], place)
            assert found is not None
            place.names[value] = found
            return
        place.say(f"real {array}[{max(1, step.size)}];")
        if step.operation == "sum":
            self._name_sum(step, place)
        elif step.operation == "concat":
            self._name_concat(step, place)
        else:
            self._loop(
                place,
                step.shape,
                lambda at: f"{array}[{_flat(step.shape, at)}] = {self._compute(step, at, place)};",
                prepare=value,
            )
        place.names[value] = (array, False)

    def _name_sum(self, step: Step, place: _Place) -> None:
        (operand,) = step.operands
        shape = self.program[operand].shape
        self._prepare(step.name, place)
        outside = [axis for axis in range(len(shape)) if axis not in step["axes"]]
        at = ["0" if shape[axis] == 1 else f"i{axis}" for axis in range(len(shape))]
        element = self._expression(operand, at, place)
        depth = 0
        for axis in outside:
            if shape[axis] != 1:
                place.say("  " * depth + _for(axis, shape[axis]) + " {")
                depth += 1
        pad = "  " * depth
        total = f"total_{_c(step.name)}"
        place.say(pad + f"real {total} = 0;")
        inner = [axis for axis in step["axes"] if shape[axis] != 1]
        heads = " ".join(_for(axis, shape[axis]) for axis in inner[:-1])
        if heads:
            place.say(pad + heads)
        if inner:
            place.say(f"#pragma omp simd reduction(+ : {total})")
            place.say(pad + _for(inner[-1], shape[inner[-1]]))
        place.say(pad + f"  {total} += {element};")
        to = [
            "0" if axis in step["axes"] or shape[axis] == 1 else f"i{axis}"
            for axis in range(len(shape))
        ]
        place.say(pad + f"{_c(step.name)}[{_flat(step.shape, to)}] = {total};")
        for level in range(depth, 0, -1):
            place.say("  " * (level - 1) + "}")

    def _name_concat(self, step: Step, place: _Place) -> None:
        axis, start = step["axis"], 0
        for operand in step.operands:
            shape = self.program[operand].shape
            offset = start

            def write(at: list[str], operand: str = operand, offset: int = offset) -> str:
                to = list(at)
                to[axis] = f"({at[axis]} + {offset})"
                target = f"{_c(step.name)}[{_flat(step.shape, to)}]"
                return f"{target} = {self._expression(operand, at, place)};"

            self._loop(place, shape, write, prepare=step.name)
            start += shape[axis]

    def _loop(self, place: _Place, shape: Shape, write: object, prepare: str) -> None:
        """Loops over every element of `shape`; what the body needs is named before them."""
        self._prepare(prepare, place)
        if 0 in shape:
            return
        at = ["0" if size == 1 else f"i{axis}" for axis, size in enumerate(shape)]
        text = write(at)  # type: ignore[operator]
        loops = [_for(axis, size) for axis, size in enumerate(shape) if size != 1]
        for number, head in enumerate(loops):
            place.say("  " * number + head)
        place.say("  " * len(loops) + text)

    def _prepare(self, value: str, place: _Place) -> None:
        """Name everything below `value` that cannot be an expression inside its loop."""
        step = self.program[value]
        if step.operation == "expand" and self._is_local(step.operands[0]):
            if self._locate(step.operands[0], place) is None:  # of the row: before its sweep
                self._name(step.operands[0], place.outer or place)
            return
        if self._locate(value, place) is not None:
            return
        if step.operation == "reshape":
            self._name(value, place)
            return
        for operand in step.operands:
            if self._must_be_named(operand, step):
                self._name(operand, place)
            elif not self._is_leaf(operand):
                self._prepare(operand, place)
            else:
                self._locate(operand, place)

    def _must_be_named(self, operand: str, user: Step) -> bool:
        step = self.program[operand]
        if self._is_leaf(operand) or step.operation in ("expand", "extend"):
            return False
        if step.operation in ("sum", "concat", "place", "reshape") or user.operation == "reshape":
            return True
        if self.uses.get(operand, 0) > 1:
            return True
        template = POINTWISE[user.operation].cpp if user.operation in POINTWISE else ""
        return any(template.count(f"{{{number}}}") > 1 for number in range(2)) or (
            step.operation in POINTWISE
            and POINTWISE[step.operation].is_costly
            and user.size > step.size
        )

    def _locate(self, value: str, place: _Place) -> tuple[str, bool] | None:
        """The array of a value, if it has one here or can be pointed to."""
        found = place.find(value)
        if found is not None:
            return found
        step = self.program[value]
        if value in self.stored and self._is_local(value):
            return place.find(base_of(self.program, value))
        if self._is_leaf(value):
            return self._point(value, value, "row" if self._is_row(step) else "f", place)
        if step.operation == "expand":
            return self._locate_expand(step, place)
        return None

    def _is_row(self, step: Step) -> bool:
        if not self.has_finer:
            return True
        return step.space is not self.work.fine or step.space is self.work.space

    def _locate_expand(self, step: Step, place: _Place) -> tuple[str, bool] | None:
        (operand,) = step.operands
        is_fine = step.space is self.work.fine and self.has_finer
        if is_fine and step["way"] == self.work.way and not self.work.space.is_small:
            if self._is_local(operand):
                return place.find(base_of(self.program, operand))
            return self._point(step.name, operand, "row", place)
        if step["way"] == "all":
            return self._point(step.name, operand, "0", place)
        index = "f" if is_fine else "row"
        way = self._way(step.space, step["way"])
        size = self.program[operand].size
        found = self._point(step.name, operand, f"int64_t({way}[{index}])", place)
        if is_fine and size * 4 >= PREFETCH_BYTES:
            self.prefetched.append((self._leaf(operand), way, size))
        return found

    def _point(self, value: str, leaf: str, index: str, place: _Place) -> tuple[str, bool]:
        name = f"at_{_c(value)}"
        place.say(
            f"const Stored* {name} = {self._leaf(leaf)} + {index} * {self.program[leaf].size};"
        )
        place.names[value] = (name, True)
        return place.names[value]

    def _leaf(self, value: str) -> str:
        base = base_of(self.program, value)
        return self.leaves.setdefault(base, f"in_{_c(base)}")

    def _way(self, space: Space, way: str) -> str:
        return self.ways.setdefault((space, way), f"way_{space.value.replace(' ', '_')}_{way}")

    def _expression(self, value: str, at: Sequence[str], place: _Place) -> str:
        """One element of the value, as C++."""
        step = self.program[value]
        found = self._locate(value, place)
        if found is not None:
            element = f"{found[0]}[{_flat(step.shape, at)}]"
            return f"Number::load({element})" if found[1] else element
        return self._compute(step, at, place)

    def _compute(self, step: Step, at: Sequence[str], place: _Place) -> str:
        if step.operation in POINTWISE:
            operands = [
                self._expression(each, _aligned(self.program[each].shape, at), place)
                for each in step.operands
            ]
            attributes = {key: repr(value) for key, value in step.attributes}
            return POINTWISE[step.operation].cpp.format(*operands, **attributes)
        if step.operation == "broadcast":
            (operand,) = step.operands
            return self._expression(operand, _aligned(self.program[operand].shape, at), place)
        if step.operation == "expand":
            found = self._locate_expand(step, place)
            assert found is not None
            element = f"{found[0]}[{_flat(step.shape, at)}]"
            return f"Number::load({element})" if found[1] else element
        if step.operation == "transpose":
            return self._expression(step.operands[0], [*at[:-2], at[-1], at[-2]], place)
        if step.operation == "slice":
            moved = list(at)
            moved[step["axis"]] = f"({at[step['axis']]} + {step['start']})"
            return self._expression(step.operands[0], moved, place)
        if step.operation == "place":
            return self._compute_place(step, at, place)
        if step.operation == "extend":
            (operand,) = step.operands
            size = self.program[operand].size
            leaf = self._leaf(operand)
            flat = _flat(step.shape, at)
            return f"(row < targets ? Number::load({leaf}[row * {size} + {flat}]) : real(0))"
        if step.operation == "keep":
            return self._compute_keep(step, at)
        raise NotImplementedError(f"{step.operation} inside a loop")

    def _compute_place(self, step: Step, at: Sequence[str], place: _Place) -> str:
        (operand,) = step.operands
        axis, start = step["axis"], step["start"]
        stop = start + self.program[operand].shape[axis]
        moved = list(at)
        moved[axis] = f"({at[axis]} - {start})"
        inside = f"{at[axis]} >= {start} && {at[axis]} < {stop}"
        return f"({inside} ? {self._expression(operand, moved, place)} : real(0))"

    def _compute_keep(self, step: Step, at: Sequence[str]) -> str:
        state = self.masks.setdefault(step.name, f"state_{_c(step.name)}")
        probability = step["probability"]
        limit = int(probability * 2**32)
        scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
        row = "f" if self.has_finer and step.space is self.work.fine else "row"
        element = f"{row} * {step.size} + {_flat(step.shape, at)}"
        return f"shorthaul::keep(uint32_t({state}), {element}, {limit}ull, real({scale!r}))"

    # Around the rows

    def _frame(self, row: _Place) -> str:
        over = f", with the {self.work.fine.value} rows of each" if self.work.fine else ""
        lines = [
            f"// {', '.join(self.work.results)}",
            f"// rows = {self.work.space.value}{over}; threads take chunks of about equal work",
            f"void {self.name}({', '.join(self._parameters())}) {{",
            "  std::atomic<int64_t> next_chunk{0};",
            "  shorthaul::on_each_thread(chunks < threads ? chunks : threads, [&](int64_t, int64_t) {",
        ]
        lines += [f"    std::vector<real> scratch_{_c(each)};" for each in self.scratch]
        lines.append("    for (int64_t chunk; (chunk = next_chunk.fetch_add(1)) < chunks;)")
        lines.append(
            "    for (int64_t row = chunk_rows[chunk]; row < chunk_rows[chunk + 1]; ++row) {"
        )
        if self.has_finer:
            lines.append("      const int64_t start = pointers[row], stop = pointers[row + 1];")
        for each in self.scratch:
            size = self.program[each].size
            lines.append(
                f"      if (int64_t(scratch_{_c(each)}.size()) < (stop - start) * {size}) "
                f"scratch_{_c(each)}.resize((stop - start) * {size});"
            )
        return "\n".join([*lines, *row.lines, "    }", "  });", "}", ""])

    def _parameters(self) -> list[str]:
        """In the order of `loop_arguments`."""
        found = ["const Index* chunk_rows", "int64_t chunks"]
        if self.has_finer:
            found += ["const Index* pointers", "const Index* members"]
        found += [f"const Index* {name}" for name in self.ways.values()]
        found += [f"const Stored* {name}" for name in self.leaves.values()]
        found += [f"Stored* out_{_c(r)}" for r in self.work.results if r in self.exported]
        found += [f"int64_t {name}" for name in self.masks.values()]
        return [*found, "int64_t targets", "int64_t threads"]


def _c(value: str) -> str:
    return f"{value}_"  # never a word of C++


def _for(axis: int, size: int) -> str:
    return f"for (int i{axis} = 0; i{axis} < {size}; ++i{axis})"


def _flat(shape: Shape, at: Sequence[str]) -> str:
    """The position of an element in a row."""
    terms, stride = [], 1
    for size, index in zip(reversed(shape), reversed(list(at)), strict=True):
        if index != "0":
            terms.append(index if stride == 1 else f"{index} * {stride}")
        stride *= size
    return " + ".join(reversed(terms)) or "0"


def _aligned(shape: Shape, at: Sequence[str]) -> list[str]:
    """The position in an operand that is repeated to a larger shape."""
    tail = list(at)[len(at) - len(shape) :]
    return ["0" if size == 1 else index for size, index in zip(shape, tail, strict=True)]
