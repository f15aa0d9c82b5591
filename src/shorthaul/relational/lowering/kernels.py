"""From steps to kernels: which values get memory, and which kernel makes each of them.

There are four kinds of work, and a program is lowered to a list of them::

    Product      Y[rows] = X[gather] W[type]       typed GEMM; rows of one type are consecutive
    OuterSum     dW[type] = sum of X[gather]^T Y    its gradient, in tiles of rows, summed in order
    RowLoop      everything else with many rows    one loop over the rows of a space, with inner loops
                                                   over the finer rows that lead to each, if it reduces
    TorchStep    weights by weights                few rows: PyTorch does it

Only values that a kernel must hand to another have memory (`find_stored`). Values of edges have none:
each loop computes them again from what they depend on, so no tensor of the size of the edges is made
unless the program asks for one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from shorthaul.relational.ir.program import Program, needed_steps
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.lowering.edge_memory import find_kept_edge_values

CHOICES = ("keep_edge_values", "fuse_loops")  # of lowering, which can be left out by name

ALIASES = ("reshape", "restrict")  # of a stored value: the same memory under another shape
# Loops read these where what they are made from lies, also where they have memory themselves.
READ_THROUGH = ("expand", "extend")


@dataclass(frozen=True)
class Gather:
    """Where a kernel finds the rows of an operand: a stored value, and the way to its rows."""

    value: str
    way: str | None  # None: row i is row i


@dataclass(frozen=True)
class Product:
    """A typed GEMM."""

    step: str
    x: Gather
    weight: str


@dataclass(frozen=True)
class OuterSum:
    """The gradient of a typed GEMM for its weight."""

    step: str
    x: Gather
    y: Gather


@dataclass(frozen=True)
class TorchStep:
    """A step that PyTorch runs."""

    step: str


@dataclass
class RowLoop:
    """One loop over the rows of `space`; `fine` and `way` name the rows that it reduces over."""

    space: Space
    fine: Space | None
    way: str | None
    results: list[str] = field(default_factory=list)  # stored values that it makes, in order


Work = Product | OuterSum | TorchStep | RowLoop


@dataclass(frozen=True)
class Plan:
    """What to run forward and backward, and what the backward part needs from the forward part."""

    program: Program
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    stored: frozenset[str]
    saved: tuple[str, ...]  # values that are not inputs
    again: tuple[int, ...] = ()  # forward kernels that run once more before the backward ones

    def text(self) -> str:
        """The list of kernels, forward and backward."""
        lines = []
        for title, works in (("forward", self.forward), ("backward", self.backward)):
            if works:
                lines.append(title)
                lines += [f"  {describe(work, self.program)}" for work in works]
        if self.saved:
            lines.append(f"saved for backward: {', '.join(self.saved)}")
        if self.again:
            made = [name for number in self.again for name in results_of(self.forward[number])]
            lines.append(f"computed again: {', '.join(made)}")
        return "\n".join(lines)


def describe(work: Work, program: Program) -> str:
    """One line on a kernel."""
    if isinstance(work, RowLoop):
        over = f" and the {work.fine.value} rows of each" if work.fine else ""
        return f"loop over {work.space.value} rows{over}: {', '.join(work.results)}"
    kind = {Product: "product", OuterSum: "outer sum", TorchStep: "torch"}[type(work)]
    return f"{kind}: {program[work.step].text()}"


def lower(program: Program, forward_outputs: Iterable[str], without: Collection[str] = ()) -> Plan:
    """The kernels of `program`; what `forward_outputs`, its first outputs, need goes first.

    Two choices can be left `without`, see `CHOICES`: then values that loops share are computed again,
    and every value has its own loop and its own memory.
    """
    forward_outputs = tuple(forward_outputs)
    is_fused = "fuse_loops" not in without
    keeps = is_fused and "keep_edge_values" not in without
    kept = find_kept_edge_values(program, forward_outputs) if keeps else set()
    stored = find_stored(program, kept, is_fused)
    forward_names = {step.name for step in needed_steps(program, forward_outputs)}
    lowering = _Lowering(program, stored, kept, is_fused)
    for step in program.steps:
        if step.name in forward_names:
            lowering.place(step)
    lowering.close(forward_outputs)
    forward = tuple(lowering.works)
    for step in program.steps:
        if step.name not in forward_names:
            lowering.place(step)
    lowering.close(program.output_values())
    backward = tuple(lowering.works[len(forward) :])
    made = {name for work in forward for name in results_of(work)}
    read = {name for work in backward for name in operands_of(work, program, stored)}
    read |= {base_of(program, value) for value in program.output_values()[len(forward_outputs) :]}
    saved = tuple(s.name for s in program.steps if s.name in made and s.name in read)
    return Plan(program, forward, backward, frozenset(stored), saved)


def results_of(work: Work) -> tuple[str, ...]:
    """The stored values that a kernel makes."""
    return tuple(work.results) if isinstance(work, RowLoop) else (work.step,)


def operands_of(work: Work, program: Program, stored: set[str]) -> set[str]:
    """The stored values that a kernel reads and does not make."""
    if isinstance(work, Product):
        found = {work.x.value, work.weight}
    elif isinstance(work, OuterSum):
        found = {work.x.value, work.y.value}
    elif isinstance(work, TorchStep):
        found = set(program[work.step].operands)
    else:
        found = {leaf for name in work.results for leaf, _ in leaves(program, stored, name)}
    return {base_of(program, name) for name in found} - set(results_of(work))


def base_of(program: Program, name: str) -> str:
    """The value whose memory `name` is seen through."""
    step = program[name]
    while step.operation in ALIASES:
        step = program[step.operands[0]]
    return step.name


def find_stored(program: Program, kept: Iterable[str] = (), is_fused: bool = True) -> set[str]:
    """The values that need memory: with `kept` edge values, and all of them if nothing is fused."""
    stored = {*program.output_values(), *kept}
    for step in program.steps:
        if not is_fused and step.operation not in (*READ_THROUGH, "keep", *ALIASES):
            stored.add(step.name)
        if step.operation in ("input", "linear", "outer", "reduce", "count"):
            stored.add(step.name)
        if step.space.is_small:
            stored.add(step.name)
        if step.operation in ("linear", "outer"):
            for operand in step.operands:
                through = program[operand]
                stored.add(_through_expand(program, through))
        if step.operation in ("expand", "extend", "restrict"):
            stored.add(step.operands[0])
        if step.space.is_small and not _is_reduction(step):
            stored.update(step.operands)
    # An alias has memory exactly when what it is seen through has.
    for step in reversed(program.steps):
        if step.operation in ALIASES and step.name in stored:
            stored.add(step.operands[0])
    for step in program.steps:
        if step.operation in ALIASES and step.operands[0] in stored:
            stored.add(step.name)
    return stored


def _is_reduction(step: Step) -> bool:
    return step.operation in ("reduce", "outer")


def _through_expand(program: Program, step: Step) -> str:
    """The value that a product reads through a gather: expands of small spaces stay values."""
    if step.operation == "expand" and not program[step.operands[0]].space.is_small:
        return step.operands[0]
    return step.name


def gather_of(program: Program, name: str) -> Gather:
    """How a product finds the rows of its operand."""
    step = program[name]
    source = _through_expand(program, step)
    return Gather(source, None if source == name else step["way"])


def leaves(program: Program, stored: set[str], result: str) -> Iterator[tuple[str, str | None]]:
    """The stored values that a loop reads to make `result`, each with the way it is read along."""
    seen: set[tuple[str, str | None]] = set()
    waiting = list(program[result].operands)
    if program[result].operation == "extend":
        yield program[result].operands[0], "extend"
        return
    while waiting:
        name = waiting.pop()
        step = program[name]
        if step.operation == "expand":
            found = (step.operands[0], step["way"])
        elif step.operation == "extend":
            found = (step.operands[0], "extend")
        elif name in stored:
            found = (name, None)
        else:
            waiting.extend(step.operands)
            continue
        if found not in seen:
            seen.add(found)
            yield found


class _Lowering:
    """Puts each stored value into the first kernel that can make it."""

    def __init__(self, program: Program, stored: set[str], kept: set[str], is_fused: bool) -> None:
        self.program, self.stored = program, stored
        self.edge_values, self.is_fused = kept, is_fused
        self.works: list[Work] = []
        self.made_by: dict[str, int] = {}
        self.first_open = 0
        self.waiting: dict[str, Step] = {}

    def close(self, outputs: Iterable[str]) -> None:
        """Let nothing more into the kernels so far, which make `outputs`."""
        for output in outputs:
            name = base_of(self.program, output)
            if name in self.waiting:  # no loop that would have made it on the way
                self._make_waiting([*self._find_waiting(self.program[name]), name])
        self.first_open = len(self.works)

    def place(self, step: Step) -> None:
        """Find or make the kernel for one step, if it needs one."""
        if step.name not in self.stored or step.operation in ("input", *ALIASES):
            return
        if step.operation == "linear" and not step.space.is_small:
            x, weight = step.operands
            self._append(step, Product(step.name, gather_of(self.program, x), weight))
        elif step.operation == "outer" and not self.program[step.operands[0]].space.is_small:
            left, right = (gather_of(self.program, each) for each in step.operands)
            self._append(step, OuterSum(step.name, left, right))
        elif step.operation == "count" or (
            step.space.is_small
            and not (
                step.operation == "reduce" and not self.program[step.operands[0]].space.is_small
            )
        ):
            self._append(step, TorchStep(step.name))
        else:
            self._join(step)

    def _append(self, step: Step, work: Work) -> None:
        self._make_waiting(self._find_waiting(step))
        self.made_by[step.name] = len(self.works)
        self.works.append(work)

    def _join(self, step: Step) -> None:
        if step.space is Space.EDGE and step.name in self.edge_values:
            self.waiting[step.name] = step  # made by the first loop over edges that needs it
            return
        fine = way = None
        if step.operation == "reduce":
            fine, way = self.program[step.operands[0]].space, step["way"]
        inner = self._find_waiting(step)
        if fine is Space.EDGE and not step.space.is_small:  # its loop makes them on the way
            for name in inner:
                del self.waiting[name]
        else:
            self._make_waiting(inner)
            inner = []
        earliest, whole = self.first_open, set[int]()  # loops that must be through before this one
        for name in (*inner, step.name):
            for leaf, along in self._leaves(name):
                if leaf in inner:
                    continue
                made = self.made_by.get(leaf, -1)
                is_own_row = along == way if fine is not None else along is None
                is_own_row = is_own_row and not step.space.is_small
                earliest = max(earliest, made if is_own_row else made + 1)
                whole |= set() if is_own_row else {made}
        work = self._find_loop(step, fine, way, earliest, whole)
        work.fine, work.way = work.fine or fine, work.way or way
        work.results += [*inner, step.name]
        for name in (*inner, step.name):
            self.made_by[name] = next(n for n, each in enumerate(self.works) if each is work)

    def _leaves(self, name: str) -> Iterator[tuple[str, str | None]]:
        """The values in memory that `name` is made from, each under the name of its memory."""
        for leaf, along in leaves(self.program, self.stored, name):
            yield base_of(self.program, leaf), along

    def _make_waiting(self, names: Iterable[str]) -> None:
        """Make these waiting values, each in a loop of its own."""
        for name in names:
            step = self.waiting.pop(name)
            self._append(step, RowLoop(Space.EDGE, None, None, [name]))

    def _find_waiting(self, step: Step) -> list[str]:
        """The waiting edge values that `step` is made from, in their order."""
        found: set[str] = set()
        look = [step.name]
        while look:
            for leaf, _ in self._leaves(look.pop()):
                if leaf in self.waiting and leaf not in found:
                    found.add(leaf)
                    look.append(leaf)
        return [name for name in self.waiting if name in found]

    def _find_loop(
        self, step: Step, fine: Space | None, way: str | None, earliest: int, whole: set[int]
    ) -> RowLoop:
        """A loop over the same rows: one that comes late enough, one that can be moved, or a new one."""
        for number in range(self.first_open if self.is_fused else len(self.works), len(self.works)):
            work = self.works[number]
            if not isinstance(work, RowLoop) or work.space is not step.space:
                continue
            if fine is not None and work.fine is not None and (work.fine, work.way) != (fine, way):
                continue
            if step.space.is_small and (work.fine, work.way) != (fine, way):
                continue
            if number >= earliest:
                return work
            if number not in whole and self._can_move(number):
                self._move_to_end(number)
                return work
        made = RowLoop(step.space, fine, way)
        self.works.append(made)
        return made

    def _can_move(self, number: int) -> bool:
        """Whether nothing that comes later reads what the kernel makes."""
        made = set(results_of(self.works[number]))
        return not any(
            made & operands_of(work, self.program, self.stored) for work in self.works[number + 1 :]
        )

    def _move_to_end(self, number: int) -> None:
        self.works.append(self.works.pop(number))
        for name, made in self.made_by.items():
            if made == number:
                self.made_by[name] = len(self.works) - 1
            elif made > number:
                self.made_by[name] = made - 1
