"""In which sweep over its finer rows a `RowLoop` knows each value: the analysis that every backend's
text is written from.

Softmax and the weighted sum of a target's edges take three sweeps::

    sweep 0    highest = reduce logit {kind=max}       # level of `logit`: 0
    sweep 1    total   = reduce exp {kind=sum}         # `exp` needs `highest`: 1
    sweep 2    out     = reduce weighted {kind=sum}    # `weighted` needs `total`: 2
    after      what the row itself is made into

Nothing here knows a language: `emit_row_loop` writes it as C++.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.step import Step
from shorthaul.relational.lowering.kernels import READ_THROUGH, RowLoop, base_of

SCRATCH_WIDTH = 16  # values up to this wide are kept between the sweeps of one row


class SweepOrder:
    """What one loop makes, in which sweep, and what it keeps from sweep to sweep."""

    def __init__(self, work: RowLoop, program: Program, stored: Iterable[str]) -> None:
        self.work, self.program, self.stored = work, program, frozenset(stored)
        self._levels: dict[str, int] = {}
        self.has_finer = work.fine is not None
        self.inner = tuple(r for r in work.results if self._is_inner(r))  # a row per finer row
        self.outer = tuple(r for r in work.results if not self._is_inner(r))
        self.reductions = tuple(
            r for r in self.outer if self.has_finer and program[r].operation == "reduce"
        )
        self.uses = self._count_uses()  # value -> how many steps of the loop read it
        targets = [program[r].operands[0] for r in self.reductions] + list(self.inner)
        self.count = 1 + max(map(self.level, targets), default=-1)
        self.kept = self._choose_kept(targets)  # narrow value -> the sweep that makes it

    def level(self, name: str) -> int:
        """The sweep after which a row's value is known; the sweep in which a finer row's is."""
        if name not in self._levels:
            self._levels[name] = self._find_level(self.program[name])
        return self._levels[name]

    def reductions_in(self, sweep: int) -> list[str]:
        """The reductions that are added up in this sweep."""
        return [r for r in self.reductions if self.level(self.program[r].operands[0]) == sweep]

    def inner_in(self, sweep: int) -> list[str]:
        """The results with a row per finer row that this sweep makes."""
        return [each for each in self.inner if self.level(each) == sweep]

    def kept_in(self, sweep: int) -> list[str]:
        """The values that this sweep makes and a later one reads."""
        return [each for each, made in self.kept.items() if made == sweep]

    def kept_before(self, sweep: int) -> list[str]:
        """The values that an earlier sweep kept."""
        return [each for each, made in self.kept.items() if made < sweep]

    def is_local(self, name: str) -> bool:
        """Whether the loop makes the value itself."""
        if name not in self.stored:
            return True
        return base_of(self.program, name) in self.work.results

    def is_leaf(self, name: str) -> bool:
        """Whether the value is read from its own memory, not made here."""
        if self.program[name].operation in READ_THROUGH:
            return False
        return name in self.stored and not self.is_local(name)

    def is_row(self, step: Step) -> bool:
        """Whether the value belongs to the row of the outer loop, not to one of its finer rows."""
        if not self.has_finer:
            return True
        return step.space is not self.work.fine or step.space is self.work.space

    def is_own_row(self, step: Step) -> bool:
        """Whether `expand` gives each finer row the value of the very row whose sweep it is in."""
        return step.space is self.work.fine and step["way"] == self.work.way

    def _is_inner(self, name: str) -> bool:
        space = self.program[name].space
        return space is self.work.fine is not None and space is not self.work.space

    def _count_uses(self) -> dict[str, int]:
        found: dict[str, int] = {}
        waiting = list(self.work.results)
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for operand in self.program[name].operands:
                found[operand] = found.get(operand, 0) + 1
                if not self.is_leaf(operand) and self.program[name].operation != "expand":
                    waiting.append(operand)
        return found

    def _find_level(self, step: Step) -> int:
        if self.is_leaf(step.name):
            return 0
        if step.operation == "reduce" and step.name in self.work.results:
            return self.level(step.operands[0]) + 1
        if step.operation == "expand":
            own = self.is_own_row(step) and self.is_local(step.operands[0])
            return self.level(step.operands[0]) if own else 0
        return max(map(self.level, step.operands), default=0)

    def _choose_kept(self, targets: Sequence[str]) -> dict[str, int]:
        """Narrow values of an earlier sweep that a later one needs are kept for it."""
        found: dict[str, int] = {}
        for target in targets:
            level = self.level(target)
            waiting = [target]
            while waiting:
                name = waiting.pop()
                step = self.program[name]
                if self.is_leaf(name) or step.operation == "expand":
                    continue
                if self.level(name) < level and step.size <= SCRATCH_WIDTH:
                    found[name] = self.level(name)
                    continue
                waiting.extend(step.operands)
        return found
