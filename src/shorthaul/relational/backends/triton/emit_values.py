"""Values inside a `RowLoop` as Triton: each is a tensor of some rows by the value's own dimensions.

A value of shape (heads, width) is a tensor of (rows, heads, width), its sizes rounded up to powers of
two, so that operations broadcast as the author's do. What a dimension is rounded up by holds anything;
it is masked where it is read from or written to memory and where it is added up.

Steps that only move elements within a row (slices, concatenations, reshapes) have no tensor: the
indices are moved instead, and what they lead to is loaded from there. Only a value that was computed
is moved itself, by `tl.gather`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shorthaul.relational.backends.loop_order import SweepOrder
from shorthaul.relational.backends.triton.indices import (
    ZERO,
    At,
    aligned,
    flat,
    reshape,
    round_up,
    shift,
)
from shorthaul.relational.ir.pointwise import POINTWISE
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Shape, Step
from shorthaul.relational.lowering.kernels import base_of


@dataclass(frozen=True)
class Types:
    """What numbers are in memory, and what they are computed in: names of Triton's types."""

    stored: str
    real: str


@dataclass
class Place:
    """Lines of code at one depth, and the values that have a variable there.

    `lead` is the variable with the rows of its tensors, `extent` how many there are, `mask` which of
    them are real.
    """

    indent: int
    lead: str
    extent: str
    mask: str = ""
    suffix: str = "_"  # of variables, so that those of two sweeps differ
    outer: Place | None = None
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # value -> variable

    def say(self, text: str) -> None:
        """Add one line."""
        self.lines.append("    " * self.indent + text)


class ValueWriter:
    """Writes values where they are needed, and remembers what must be passed to the function."""

    def __init__(self, order: SweepOrder, types: Types, exported: frozenset[str]) -> None:
        self.order, self.program, self.work = order, order.program, order.work
        self.types, self.real = types, types.real
        # Values that memory holds with fewer bits than they are computed with.
        self.rounded = exported if types.stored != types.real else frozenset()
        self.ways: dict[tuple[Space, str], str] = {}  # index tensors
        self.leaves: dict[str, str] = {}  # stored values that are read
        self.masks: dict[str, str] = {}  # dropout masks
        self.frames: dict[Shape, list[str]] = {}  # shape -> lines that define its indices
        self.widest = 1  # elements of a row of the largest tensor

    # Frames: the dimensions of a tensor, after its rows

    def axes(self, shape: Shape) -> list[At]:
        """The index along each dimension of `shape`."""
        if shape not in self.frames:
            lines = []
            for axis, size in enumerate(shape):
                if size != 1:
                    spread = ", ".join(":" if axis == n else "None" for n in range(len(shape)))
                    lines.append(
                        f"{_axis_name(shape, axis)} = tl.arange(0, {round_up(size)})[None, {spread}]"
                    )
            self.frames[shape] = lines
            elements = 1
            for size in shape:
                elements *= round_up(size)
            self.widest = max(self.widest, elements)
        return [
            ZERO if size == 1 else At(_axis_name(shape, axis), axis)
            for axis, size in enumerate(shape)
        ]

    def extents(self, shape: Shape, place: Place) -> str:
        """The dimensions of a tensor, rows first."""
        return _tuple(place.extent, map(round_up, shape))

    def inside(self, shape: Shape, axes: Sequence[int] | None = None) -> list[str]:
        """Conditions that leave out what dimensions are rounded up by."""
        return [
            f"({at.text} < {size})"
            for axis, (at, size) in enumerate(zip(self.axes(shape), shape, strict=True))
            if size != round_up(size) and (axes is None or axis in axes)
        ]

    def spread(self, lead: str, shape: Shape) -> str:
        """A variable over rows, turned so that it goes with tensors of `shape`."""
        return f"{lead}[:{', None' * len(shape)}]" if shape else lead

    # Values

    def home(self, step: Step, place: Place) -> Place:
        """Where a value's variable belongs: what a whole row shares is made outside the sweep."""
        if place.outer is None:
            return place
        if step.operation == "expand" and not self.order.is_row(step):
            shared = step["way"] == "all" or self._reads_own_row(step)
            return place.outer if shared else place
        return place.outer if self.order.is_row(step) else place

    def name(self, value: str, place: Place) -> str:
        """The variable of a value, made now if it is not there."""
        step = self.program[value]
        place = self.home(step, place)
        if value in place.names:
            return place.names[value]
        if step.operation == "sum" and not self.order.is_leaf(value):
            return self._name_sum(step, place)
        if step.operation == "expand" and self._reads_own_row(step):
            (operand,) = step.operands
            if self.order.is_local(operand):
                place.names[value] = self.name(operand, place)
                return place.names[value]
        text = self._compute(step, self.axes(step.shape), step.shape, [], place)
        variable = f"{value}{place.suffix}"
        if not self._is_whole(step, place):
            text = f"tl.broadcast_to({text}, {self.extents(step.shape, place)})"
        place.say(f"{variable} = {text}")
        place.names[value] = variable
        self.round(value, place)
        return variable

    def round(self, value: str, place: Place) -> None:
        """Go on with what memory will hold, so that whoever reads it there computes the same."""
        if value in self.rounded:
            variable = place.names[value]
            place.say(f"{variable} = {variable}.to({self.types.stored}).to({self.real})")

    def _is_whole(self, step: Step, place: Place) -> bool:
        """Whether the expression of a step has all its rows and dimensions by itself."""
        if self.order.is_leaf(step.name) or step.operation in ("extend", "keep"):
            return True
        if step.operation == "expand":
            return step["way"] != "all" or place.extent == "1"
        return step.operation in POINTWISE and any(
            self.program[each].shape == step.shape
            and place.extent in ("1", self._extent_of(self.program[each], place))
            for each in step.operands
        )

    def _name_sum(self, step: Step, place: Place) -> str:
        (operand,) = step.operands
        shape = self.program[operand].shape
        text = self.name(operand, place)
        outside = self.inside(shape, step["axes"])
        if outside:
            text = f"tl.where({' & '.join(outside)}, {text}, 0.0)"
        for axis in step["axes"]:
            text = f"tl.sum({text}, axis={axis + 1}, keep_dims=True)"
        variable = f"{step.name}{place.suffix}"
        place.say(f"{variable} = {text}")
        place.names[step.name] = variable
        self.round(step.name, place)
        return variable

    def read(
        self, value: str, at: Sequence[At], frame: Shape, conditions: list[str], place: Place
    ) -> str:
        """The elements `at` of a value, as an expression over `frame`.

        `conditions` say for which elements of the frame `at` is inside the value.
        """
        step = self.program[value]
        if self._is_aligned(step.shape, at, frame):
            return self._view(step, at, frame, place)
        if self._must_be_variable(step):
            return self._take(step, at, frame, place)
        return self._compute(step, at, frame, conditions, place)

    def _is_aligned(self, shape: Shape, at: Sequence[At], frame: Shape) -> bool:
        """Whether dimensions are those of the frame, in its order, or have one element."""
        last = -1
        for size, index in zip(shape, at, strict=True):
            if size == 1 and index == ZERO:
                continue
            if index.axis is None or index.axis <= last or frame[index.axis] != size:
                return False
            last = index.axis
        return True

    def _view(self, step: Step, at: Sequence[At], frame: Shape, place: Place) -> str:
        variable = self.name(step.name, place)
        sizes = {
            index.axis: round_up(size)
            for size, index in zip(step.shape, at, strict=True)
            if index.axis is not None
        }
        wanted = tuple(sizes.get(axis, 1) for axis in range(len(frame)))
        if wanted == tuple(map(round_up, step.shape)):
            return variable
        extent = self._extent_of(step, place)
        return f"tl.reshape({variable}, {_tuple(extent, wanted)})"

    def _extent_of(self, step: Step, place: Place) -> str:
        return self.home(step, place).extent

    def _must_be_variable(self, step: Step) -> bool:
        if step.operation in ("sum", "reduce") and not self.order.is_leaf(step.name):
            return True
        if step.operation == "expand" and self._reads_own_row(step):
            return self.order.is_local(step.operands[0])
        return False

    def _take(self, step: Step, at: Sequence[At], frame: Shape, place: Place) -> str:
        """Elements of a variable in another order."""
        variable = self.name(step.name, place)
        extent = self._extent_of(step, place)
        padded = [round_up(size) for size in step.shape]
        count, moved = 1, 1
        for size in padded:
            count *= size
        for size in frame:
            moved *= round_up(size)
        whole = _tuple(extent, map(round_up, frame))
        if all(index.is_constant for index in at):
            index = f"tl.full(({extent}, {moved}), {flat(padded, at)}, tl.int32)"
        else:
            places = f"tl.minimum(tl.maximum({flat(padded, at)}, 0), {count - 1})"
            index = f"tl.reshape(tl.broadcast_to({places}, {whole}), ({extent}, {moved}))"
        taken = f"tl.gather(tl.reshape({variable}, ({extent}, {count})), {index}, 1)"
        return f"tl.reshape({taken}, {whole})"

    def _compute(
        self, step: Step, at: Sequence[At], frame: Shape, conditions: list[str], place: Place
    ) -> str:
        if self.order.is_leaf(step.name):
            return self._load(
                step.name, self._lead(step, place), at, frame, conditions, self.home(step, place)
            )
        if step.operation == "expand":
            return self._compute_expand(step, at, frame, conditions, place)
        if step.operation == "extend":
            lead = self._lead(step, place)
            limit = f"({self.spread(lead, frame)} < targets)"
            home = self.home(step, place)
            return self._load(step.operands[0], lead, at, frame, [*conditions, limit], home)
        if step.operation in POINTWISE:
            operands = [
                self.read(each, aligned(self.program[each].shape, at), frame, conditions, place)
                for each in step.operands
            ]
            attributes = {key: repr(value) for key, value in step.attributes}
            row = POINTWISE[step.operation]
            types = {"real": self.types.real, "stored": self.types.stored}
            return (row.triton or row.cpp).format(*operands, **types, **attributes)
        if step.operation == "keep":
            return self._compute_keep(step, at, frame, place)
        if step.operation == "concat":
            return self._compute_concat(step, at, frame, conditions, place)
        if step.operation == "place":
            (operand,) = step.operands
            axis, start = step["axis"], step["start"]
            zero = self._zero(frame)
            return self._read_part(operand, axis, start, at, frame, conditions, place, zero)
        moved = self._move(step, at)
        return self.read(step.operands[0], moved, frame, conditions, place)

    def _move(self, step: Step, at: Sequence[At]) -> list[At]:
        """Where the elements `at` of a step come from in its operand."""
        shape = self.program[step.operands[0]].shape
        if step.operation == "broadcast":
            return aligned(shape, at)
        if step.operation == "restrict":
            return list(at)
        if step.operation == "transpose":
            return [*at[:-2], at[-1], at[-2]]
        if step.operation == "slice":
            moved = list(at)
            axis, start = step["axis"], step["start"]
            moved[axis] = shift(at[axis], start, shape[axis])
            return moved
        if step.operation == "reshape":
            return reshape(step.shape, shape, at)
        raise NotImplementedError(f"{step.operation} inside a loop")

    def _read_part(
        self,
        operand: str,
        axis: int,
        start: int,
        at: Sequence[At],
        frame: Shape,
        conditions: list[str],
        place: Place,
        otherwise: str,
    ) -> str:
        """The operand where `at` lies in it, counted from `start` along `axis`; else `otherwise`."""
        size = self.program[operand].shape[axis]
        moved = list(at)
        moved[axis] = shift(at[axis], -start, size)
        index = at[axis].text
        if at[axis].is_constant:
            is_within = start <= int(index) < start + size
            return self.read(operand, moved, frame, conditions, place) if is_within else otherwise
        within = f"(({index} >= {start}) & ({index} < {start + size}))"
        return (
            f"tl.where({within}, "
            f"{self.read(operand, moved, frame, [*conditions, within], place)}, {otherwise})"
        )

    def _zero(self, frame: Shape) -> str:
        """A tensor, because it may be all that is left: a Python number has no type or shape."""
        return f"tl.full({_tuple('1', (1,) * len(frame))}, 0.0, {self.real})"

    def _compute_concat(
        self, step: Step, at: Sequence[At], frame: Shape, conditions: list[str], place: Place
    ) -> str:
        text, start = self._zero(frame), 0
        for operand in step.operands:
            axis = step["axis"]
            text = self._read_part(operand, axis, start, at, frame, conditions, place, text)
            start += self.program[operand].shape[axis]
        return text

    def _compute_keep(self, step: Step, at: Sequence[At], frame: Shape, place: Place) -> str:
        state = self.masks.setdefault(step.name, f"state_{step.name}")
        probability = step["probability"]
        scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
        lead = self.spread(self._lead(step, place), frame)
        element = f"{lead} * {step.size} + {flat(step.shape, at)}"
        kept = f"is_kept({state}, {element}, {int(probability * 2**32)})"
        return f"({kept}.to({self.real}) * {scale!r})"

    # Memory

    def _lead(self, step: Step, place: Place) -> str:
        return self.home(step, place).lead

    def _reads_own_row(self, step: Step) -> bool:
        is_fine = step.space is self.work.fine and self.order.has_finer
        return is_fine and self.order.is_own_row(step) and not self.work.space.is_small

    def _compute_expand(
        self, step: Step, at: Sequence[At], frame: Shape, conditions: list[str], place: Place
    ) -> str:
        (operand,) = step.operands
        home = self.home(step, place)
        if self._reads_own_row(step):
            if self.order.is_local(operand):
                return self.read(operand, at, frame, conditions, home)
            return self._load(operand, home.lead, at, frame, conditions, home)
        if step["way"] == "all":
            return self._load(operand, "one", at, frame, conditions, home, is_masked=False)
        return self._load(operand, self._follow(step, home), at, frame, conditions, home)

    def _follow(self, step: Step, place: Place) -> str:
        """The variable with the rows that a way leads to."""
        key = (step.space, step["way"])
        name = f"{step.space.value.replace(' ', '_')}_{step['way']}"
        way = self.ways.setdefault(key, f"way_{name}")
        variable = f"{name}{place.suffix}at"
        if variable not in place.names:
            mask = f", mask={place.mask}, other=0" if place.mask else ""
            place.say(f"{variable} = tl.load({way} + {place.lead}{mask}).to(tl.int64)")
            place.names[variable] = variable
        return variable

    def _load(
        self,
        value: str,
        lead: str,
        at: Sequence[At],
        frame: Shape,
        conditions: list[str],
        place: Place,
        is_masked: bool = True,
    ) -> str:
        base = base_of(self.program, value)
        leaf = self.leaves.setdefault(base, f"in_{base}")
        size = self.program[value].size
        offset = flat(self.program[value].shape, at)
        index = f"{self.spread(lead, frame)} * {size}" + ("" if offset == "0" else f" + {offset}")
        masks = [*self.inside(frame), *conditions]
        if place.mask and is_masked:
            masks.insert(0, self.spread(place.mask, frame))
        mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        return f"tl.load({leaf} + {index}{mask}).to({self.real})"


def _tuple(extent: str, sizes: Iterable[int]) -> str:
    """The sizes of a tensor, rows first, as Python."""
    found = [extent, *map(str, sizes)]
    return f"({', '.join(found)})" if len(found) > 1 else f"({extent},)"


def _axis_name(shape: Shape, axis: int) -> str:
    return f"i{axis}_{'x'.join(map(str, shape))}"
