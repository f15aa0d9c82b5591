"""The compiler's one data structure: a program is a list of steps, each the making of one value.

A value has rows in a `Space` and a shape per row. Heads are an ordinary dimension. Steps are in an
order in which they can run, every name is given once, and nothing changes after it is made::

    x     = input                         : 64    over node
    W     = input                         : 64 64 over relation
    x_1   = expand x {way=source}         : 64    over edge
    m     = linear x_1, W {way=relation}  : 64    over edge
    out   = reduce m {kind=sum, way=target} : 64  over target

`Program.text()` prints it, the passes rewrite it, every backend runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shorthaul.relational.ir.operations import infer
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Shape, SourceLine, Step


@dataclass(frozen=True)
class Program:
    """Steps, and which of their values are results."""

    name: str
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]  # (what the author calls it, the value)

    def __getitem__(self, name: str) -> Step:
        return self.by_name[name]

    @property
    def by_name(self) -> Mapping[str, Step]:
        """Every step under its value's name."""
        found: Mapping[str, Step] | None = self.__dict__.get("_by_name")
        if found is None:
            found = {step.name: step for step in self.steps}
            object.__setattr__(self, "_by_name", found)
        return found

    @property
    def inputs(self) -> tuple[Step, ...]:
        """Values that come from outside."""
        return tuple(step for step in self.steps if step.operation == "input")

    def users(self) -> dict[str, list[Step]]:
        """The steps that read each value."""
        found: dict[str, list[Step]] = {step.name: [] for step in self.steps}
        for step in self.steps:
            for operand in dict.fromkeys(step.operands):
                found[operand].append(step)
        return found

    def output_values(self) -> tuple[str, ...]:
        """The names of the values that are results."""
        return tuple(value for _, value in self.outputs)

    def text(self) -> str:
        """The program, one line a step, columns aligned."""
        lines = [step.text() for step in self.steps]
        names = max((len(step.name) for step in self.steps), default=0)
        rows = []
        for line in lines:
            name, _, rest = line.partition(" = ")
            made, _, kind = rest.rpartition(" : ")
            rows.append((name, made, kind))
        made_width = max((len(made) for _, made, _ in rows), default=0)
        printed = [
            f"  {name:<{names}} = {made:<{made_width}} : {kind}" for name, made, kind in rows
        ]
        results = ", ".join(
            name if name == value else f"{name} = {value}" for name, value in self.outputs
        )
        return "\n".join([f"program {self.name}", *printed, f"  return {results}"])


class Builder:
    """Makes steps one after the other, with names that are free and shapes that fit.

    A step equal to an earlier one but for its name is not made again.
    """

    def __init__(self, name: str, steps: Iterable[Step] = ()) -> None:
        self.name = name
        self.steps: dict[str, Step] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        for step in steps:
            self.keep(step)

    def keep(self, step: Step) -> str:
        """Add a finished step under its own name."""
        return self._put(step, _key(step))

    def _put(self, step: Step, key: tuple[Any, ...]) -> str:
        if step.name in self.steps:
            raise ValueError(f"`{step.name}` is made twice in {self.name}")
        self.steps[step.name] = step
        self._made.setdefault(key, step.name)
        return step.name

    def reuse(self, step: Step) -> str:
        """Make the value of a step of another program whose operands are the very same steps here."""
        key = _key(step)
        found = self._made.get(key)
        if found is not None:
            return found
        if step.name in self.steps:
            step = replace(step, name=self.free_name(step.name))
        return self._put(step, key)

    def add(
        self,
        operation: str,
        *operands: str,
        name: str = "",
        line: SourceLine | None = None,
        **attributes: Any,
    ) -> str:
        """Make the value, unless it is there, and return its name."""
        made_from = tuple(self.steps[each] for each in operands)
        kept = tuple(sorted(attributes.items()))
        shape, space = infer(operation, made_from, dict(kept), line)
        key = (operation, operands, kept, space, shape)
        found = self._made.get(key)
        if found is not None:
            return found
        name = self.free_name(name or operation)
        return self._put(Step(name, operation, operands, shape, space, kept, line), key)

    def input(
        self, name: str, shape: Shape, space: Space, kind: str, line: SourceLine | None = None
    ) -> str:
        """A value from outside: a feature, a weight, a gradient."""
        if name in self.steps:
            return name
        return self.keep(Step(name, "input", (), shape, space, (("kind", kind),), line))

    def free_name(self, wanted: str) -> str:
        """`wanted`, with a number if it is taken."""
        if wanted not in self.steps:
            return wanted
        base = wanted
        number = 1
        while f"{base}_{number}" in self.steps:
            number += 1
        return f"{base}_{number}"

    def build(self, outputs: Iterable[tuple[str, str]]) -> Program:
        """The program of everything made so far."""
        return Program(self.name, tuple(self.steps.values()), tuple(outputs))


def _key(step: Step) -> tuple[Any, ...]:
    if step.operation == "input":
        return ("input", step.name)
    return (step.operation, step.operands, step.attributes, step.space, step.shape)


def needed_steps(program: Program, values: Iterable[str]) -> Iterator[Step]:
    """The steps that `values` are made from, in the program's order."""
    wanted = set(values)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if step.name in wanted:
            wanted.update(step.operands)
            kept.append(step)
    return reversed(kept)


def drop_unused(program: Program) -> Program:
    """Leave out steps whose values nobody needs; inputs stay, they are the signature.

    Rewrites::

        a = exp x
        b = relu x
        return b
        ->
        b = relu x
        return b
    """
    kept = {step.name for step in needed_steps(program, program.output_values())}
    steps = tuple(s for s in program.steps if s.name in kept or s.operation == "input")
    return Program(program.name, steps, program.outputs)
