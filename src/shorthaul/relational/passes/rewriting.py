"""What passes are made of: going through a program in order, making each step again or another one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shorthaul.relational.ir.program import Builder, Program, drop_unused
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.topology.topology import Topology


@dataclass(frozen=True)
class GraphSizes:
    """Rows of every space, and whether gradients are wanted: all that a pass may know of a call."""

    rows: Mapping[Space, int]
    trains: bool = False

    @classmethod
    def of(cls, topology: Topology) -> GraphSizes:
        """The sizes of one graph."""
        return cls({space: topology.rows(space) for space in Space})

    def __getitem__(self, space: Space) -> int:
        return self.rows[space]


Rule = Callable[["Rewriter", Step], str | None]


class Rewriter:
    """A new program in the making, and what each old value has become in it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.make = Builder(program.name)
        self.new: dict[str, str] = {}
        self.outputs = set(program.output_values())

    @functools.cached_property
    def users(self) -> dict[str, list[Step]]:
        """The steps that read each value."""
        return self.program.users()

    def again(self, step: Step) -> str:
        """The step as it was, from the new operands."""
        if step.operation == "input":
            return self.make.keep(step)
        operands = tuple(self.new[each] for each in step.operands)
        if operands == step.operands and all(
            self.make.steps[each] is self.program[each] for each in operands
        ):
            return self.make.reuse(step)
        return self.make.add(
            step.operation,
            *operands,
            name=step.name,
            line=step.line,
            **dict(step.attributes),
        )

    def old(self, name: str) -> Step:
        """A step of the program that is being rewritten."""
        return self.program[name]

    def is_used_once(self, name: str) -> bool:
        """Whether one step alone reads the value."""
        return len(self.users[name]) == 1 and name not in self.outputs

    def finish(self) -> Program:
        """The new program, without what nobody needs; the old one where nothing is new."""
        outputs = tuple((name, self.new[value]) for name, value in self.program.outputs)
        made = drop_unused(self.make.build(outputs))
        before = self.program
        is_same = len(made.steps) == len(before.steps) and made.outputs == before.outputs
        is_same = is_same and all(map(operator.is_, made.steps, before.steps))
        return before if is_same else made


def rewrite(program: Program, rule: Rule) -> Program:
    """`program` with every step made again, or made as `rule` says."""
    rewriter = Rewriter(program)
    for step in program.steps:
        made = rule(rewriter, step) if step.operation != "input" else None
        rewriter.new[step.name] = rewriter.again(step) if made is None else made
    return rewriter.finish()
