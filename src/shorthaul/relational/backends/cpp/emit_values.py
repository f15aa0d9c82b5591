"""Values inside a `RowLoop` as C++: each is an array as wide as one row of it, a pointer to where it is
stored, or an expression inside the loop that uses it.

Names come from the author's program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Shape, Step
from shorthaul.relational.lowering.kernels import base_of

PREFETCH_BYTES = 64  # rows narrower than a cache line are not worth asking for ahead
PREFETCH_AHEAD = 12
# Without it, compilers unroll short loops first and then make vectors across heads, by shuffling.
SIMD = "#pragma omp simd"


@dataclass
class Place:
    """Lines of code at one depth, and the values that have a name there."""

    indent: int
    outer: Place | None = None
    lines: list[str] = field(default_factory=list)
    names: dict[str, tuple[str, bool]] = field(default_factory=dict)  # value -> (array, is stored)

    def say(self, text: str) -> None:
        """Add one line."""
        self.lines.append("  " * self.indent + text)

    def find(self, value: str) -> tuple[str, bool] | None:
        """The array of a value, here or further out."""
        return self.names.get(value) or (self.outer.find(value) if self.outer else None)


class ValueWriter:
    """Writes values where they are needed, and remembers what must be passed to the function."""

    def __init__(self, order: SweepOrder, rounded: frozenset[str] = frozenset()) -> None:
        self.order, self.program, self.work = order, order.program, order.work
        self.rounded = rounded  # values that memory holds with fewer bits
        # Index tensors; those of the finer rows come in the order in which the loop meets these.
        self.ways: dict[tuple[Space, str], str] = {}
        self.leaves: dict[str, str] = {}  # stored values that are read
        self.masks: dict[str, str] = {}  # dropout masks
        self._prefetched: list[tuple[str, str, int]] = []

    def take_prefetches(self) -> list[str]:
        """Lines that ask for the rows which the sweep just written will read soon, for this row or
        the next ones: many rows have fewer edges than lie ahead.
        """
        if not self._prefetched:
            return []
        ahead = f"p + {PREFETCH_AHEAD}"
        lines = [f"  if ({ahead} < chunk_stop) {{"]
        for leaf, way, size in self._prefetched:
            lines.append(
                f"    for (int i = 0; i < {size}; i += 64 / int(sizeof(Stored))) "
                f"__builtin_prefetch({leaf} + int64_t({way}[{ahead}]) * {size} + i);"
            )
        self._prefetched = []
        return [*lines, "  }"]

    def element(self, value: str, place: Place) -> str:
        """Element `i` of a value that has a name here."""
        found = place.find(base_of(self.program, value)) or self._locate(value, place)
        assert found is not None, value
        return f"Number::load({found[0]}[i])" if found[1] else f"{found[0]}[i]"

    def name(self, value: str, place: Place) -> None:
        """Make sure that the value is an array that can be read here."""
        if self._locate(value, place) is not None:
            return
        step = self.program[value]
        array = c_name(value)
        if step.operation == "reshape":
            self.name(step.operands[0], place)
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
            self.loop(
                place,
                step.shape,
                lambda at: f"{array}[{flat(step.shape, at)}] = {self._compute(step, at, place)};",
                prepare=value,
            )
        place.names[value] = (array, False)
        self.round(value, place)

    def round(self, value: str, place: Place) -> None:
        """Go on with what memory will hold, so that whoever reads it there computes the same."""
        if value in self.rounded:
            array = c_name(value)
            place.say(
                f"for (int i = 0; i < {self.program[value].size}; ++i) "
                f"{array}[i] = Number::load(Number::store({array}[i]));"
            )

    def _name_sum(self, step: Step, place: Place) -> None:
        (operand,) = step.operands
        shape = self.program[operand].shape
        self._prepare(step.name, place)
        axes = [axis for axis in range(len(shape)) if shape[axis] != 1]
        inside = [axis for axis in axes if axis in step["axes"]]
        outside = [axis for axis in axes if axis not in step["axes"]]
        at = [f"i{axis}" if axis in axes else "0" for axis in range(len(shape))]
        to = [f"i{axis}" if axis in outside else "0" for axis in range(len(shape))]
        element = self.expression(operand, at, place)
        target = f"{c_name(step.name)}[{flat(step.shape, to)}]"
        if outside and inside and outside[-1] > inside[-1]:
            # The last dimension stays: its elements are summed side by side.
            place.say(f"for (int i = 0; i < {step.size}; ++i) {c_name(step.name)}[i] = 0;")
            for axis in (*inside, *outside):
                if axis == outside[-1]:
                    place.say(SIMD)
                place.say(for_axis(axis, shape[axis]))
            place.say(f"  {target} += {element};")
            return
        total, pad = f"total_{c_name(step.name)}", "  " * len(outside)
        for depth, axis in enumerate(outside):
            place.say("  " * depth + for_axis(axis, shape[axis]) + " {")
        place.say(f"{pad}real {total} = 0;")
        for axis in inside[:-1]:
            place.say(pad + for_axis(axis, shape[axis]))
        if inside:
            place.say(f"#pragma omp simd reduction(+ : {total})")
            place.say(pad + for_axis(inside[-1], shape[inside[-1]]))
        place.say(f"{pad}  {total} += {element};")
        place.say(f"{pad}{target} = {total};")
        for depth in reversed(range(len(outside))):
            place.say("  " * depth + "}")

    def _name_concat(self, step: Step, place: Place) -> None:
        axis, start = step["axis"], 0
        for operand in step.operands:
            shape = self.program[operand].shape
            offset = start

            def write(at: list[str], operand: str = operand, offset: int = offset) -> str:
                to = list(at)
                to[axis] = f"({at[axis]} + {offset})"
                target = f"{c_name(step.name)}[{flat(step.shape, to)}]"
                return f"{target} = {self.expression(operand, at, place)};"

            self.loop(place, shape, write, prepare=step.name)
            start += shape[axis]

    def loop(
        self, place: Place, shape: Shape, write: Callable[[list[str]], str], prepare: str
    ) -> None:
        """Loops over every element of `shape`; what the body needs is named before them."""
        self._prepare(prepare, place)
        if 0 in shape:
            return
        at = ["0" if size == 1 else f"i{axis}" for axis, size in enumerate(shape)]
        text = write(at)
        loops = [for_axis(axis, size) for axis, size in enumerate(shape) if size != 1]
        for number, head in enumerate(loops):
            if number == len(loops) - 1:
                place.say(SIMD)
            place.say("  " * number + head)
        place.say("  " * len(loops) + text)

    def _prepare(self, value: str, place: Place) -> None:
        """Name everything below `value` that cannot be an expression inside its loop."""
        step = self.program[value]
        if step.operation == "expand" and self.order.is_local(step.operands[0]):
            if self._locate(step.operands[0], place) is None:  # of the row: before its sweep
                self.name(step.operands[0], place.outer or place)
            return
        if self._locate(value, place) is not None:
            return
        if step.operation == "reshape":
            self.name(value, place)
            return
        for operand in step.operands:
            if self._must_be_named(operand, step):
                self.name(operand, place)
            elif not self.order.is_leaf(operand):
                self._prepare(operand, place)
            else:
                self._locate(operand, place)

    def _must_be_named(self, operand: str, user: Step) -> bool:
        step = self.program[operand]
        if self.order.is_leaf(operand) or step.operation in ("expand", "extend"):
            return False
        if step.operation in ("sum", "concat", "place", "reshape") or user.operation == "reshape":
            return True
        if self.order.uses.get(operand, 0) > 1:
            return True
        if user.size > step.size:
            return True  # computed once, not for every element that it is repeated to
        template = POINTWISE[user.operation].cpp if user.operation in POINTWISE else ""
        return any(template.count(f"{{{number}}}") > 1 for number in range(2))

    def _locate(self, value: str, place: Place) -> tuple[str, bool] | None:
        """The array of a value, if it has one here or can be pointed to."""
        found = place.find(value)
        if found is not None:
            return found
        step = self.program[value]
        if value in self.order.stored and self.order.is_local(value):
            return place.find(base_of(self.program, value))
        if self.order.is_leaf(value):
            return self._point(value, value, "row" if self.order.is_row(step) else "f", place)
        if step.operation == "expand":
            return self._locate_expand(step, place)
        return None

    def _locate_expand(self, step: Step, place: Place) -> tuple[str, bool] | None:
        (operand,) = step.operands
        is_fine = step.space is self.work.fine and self.order.has_finer
        if is_fine and step["way"] == self.work.way and not self.work.space.is_small:
            if self.order.is_local(operand):
                return place.find(base_of(self.program, operand))
            return self._point(step.name, operand, "row", place)
        if step["way"] == "all":
            return self._point(step.name, operand, "0", place)
        index = "p" if is_fine else "row"
        way = self._way(step.space, step["way"])
        size = self.program[operand].size
        found = self._point(step.name, operand, f"int64_t({way}[{index}])", place)
        if is_fine and size * 4 >= PREFETCH_BYTES:
            self._prefetched.append((self._leaf(operand), way, size))
        return found

    def _point(self, value: str, leaf: str, index: str, place: Place) -> tuple[str, bool]:
        name = f"at_{c_name(value)}"
        place.say(
            f"const Stored* {name} = {self._leaf(leaf)} + {index} * {self.program[leaf].size};"
        )
        place.names[value] = (name, True)
        return place.names[value]

    def _leaf(self, value: str) -> str:
        base = base_of(self.program, value)
        return self.leaves.setdefault(base, f"in_{c_name(base)}")

    def _way(self, space: Space, way: str) -> str:
        return self.ways.setdefault((space, way), f"way_{space.value.replace(' ', '_')}_{way}")

    def expression(self, value: str, at: Sequence[str], place: Place) -> str:
        """One element of the value, as C++."""
        step = self.program[value]
        found = self._locate(value, place)
        if found is not None:
            element = f"{found[0]}[{flat(step.shape, at)}]"
            return f"Number::load({element})" if found[1] else element
        return self._compute(step, at, place)

    def _compute(self, step: Step, at: Sequence[str], place: Place) -> str:
        if step.operation in POINTWISE:
            operands = [
                self.expression(each, aligned(self.program[each].shape, at), place)
                for each in step.operands
            ]
            attributes = {key: repr(value) for key, value in step.attributes}
            return POINTWISE[step.operation].cpp.format(*operands, **attributes)
        if step.operation == "broadcast":
            (operand,) = step.operands
            return self.expression(operand, aligned(self.program[operand].shape, at), place)
        if step.operation == "expand":
            found = self._locate_expand(step, place)
            assert found is not None
            element = f"{found[0]}[{flat(step.shape, at)}]"
            return f"Number::load({element})" if found[1] else element
        if step.operation == "transpose":
            return self.expression(step.operands[0], [*at[:-2], at[-1], at[-2]], place)
        if step.operation == "slice":
            moved = list(at)
            moved[step["axis"]] = f"({at[step['axis']]} + {step['start']})"
            return self.expression(step.operands[0], moved, place)
        if step.operation == "place":
            return self._compute_place(step, at, place)
        if step.operation == "extend":
            (operand,) = step.operands
            size = self.program[operand].size
            leaf = self._leaf(operand)
            position = flat(step.shape, at)
            row = "row" if self.order.is_row(step) else "f"
            loaded = f"Number::load({leaf}[{row} * {size} + {position}])"
            return f"({row} < targets ? {loaded} : real(0))"
        if step.operation == "keep":
            return self._compute_keep(step, at)
        raise NotImplementedError(f"{step.operation} inside a loop")

    def _compute_place(self, step: Step, at: Sequence[str], place: Place) -> str:
        (operand,) = step.operands
        axis, start = step["axis"], step["start"]
        stop = start + self.program[operand].shape[axis]
        moved = list(at)
        moved[axis] = f"({at[axis]} - {start})"
        inside = f"{at[axis]} >= {start} && {at[axis]} < {stop}"
        return f"({inside} ? {self.expression(operand, moved, place)} : real(0))"

    def _compute_keep(self, step: Step, at: Sequence[str]) -> str:
        state = self.masks.setdefault(step.name, f"state_{c_name(step.name)}")
        probability = step["probability"]
        limit = int(probability * 2**32)
        scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
        row = "f" if self.order.has_finer and step.space is self.work.fine else "row"
        element = f"{row} * {step.size} + {flat(step.shape, at)}"
        return f"shorthaul::keep(uint32_t({state}), {element}, {limit}ull, real({scale!r}))"


def c_name(value: str) -> str:
    """A value's name in the generated text; the underscore keeps it from being a word of C++."""
    return f"{value}_"


def for_axis(axis: int, size: int) -> str:
    """The head of a loop over one dimension of a row."""
    return f"for (int i{axis} = 0; i{axis} < {size}; ++i{axis})"


def flat(shape: Shape, at: Sequence[str]) -> str:
    """The position of an element in a row."""
    terms, stride = [], 1
    for size, index in zip(reversed(shape), reversed(list(at)), strict=True):
        if index != "0":
            terms.append(index if stride == 1 else f"{index} * {stride}")
        stride *= size
    return " + ".join(reversed(terms)) or "0"


def aligned(shape: Shape, at: Sequence[str]) -> list[str]:
    """The position in an operand that is repeated to a larger shape."""
    tail = list(at)[len(at) - len(shape) :]
    return ["0" if size == 1 else index for size, index in zip(shape, tail, strict=True)]
