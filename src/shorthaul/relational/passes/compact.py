"""Compact materialization: a value has one row for each thing that it depends on, no more."""

from __future__ import annotations

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import (
    EDGE_WAYS,
    IDENTITY,
    Dependencies,
    Space,
    choose_space,
    find_way,
)
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter

POLES = ("divide", "reciprocal", "log", "sqrt")  # where a slope is infinite or there is no number


def compact(program: Program, sizes: GraphSizes) -> Program:
    """Compute once per pair, node or relation what depends on nothing else of the edge.

    Rewrites::

        s = expand x {way=source}                  : 64 over edge
        m = linear s, W {way=relation}             : 64 over edge         # one row per edge
        ->
        s = expand x {way=node}                    : 64 over source pair
        m = linear s, W {way=relation}             : 64 over source pair  # one row per distinct pair
        e = expand m {way=source_pair}             : 64 over edge         # an index, never a copy

    The way back is the same: the gradient of `e` is added up per pair before it meets W.
    """
    return _Compaction(program).run()


class _Compaction(Rewriter):
    """Every old value is kept in its smallest space and spread to where it is used."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.needs: dict[str, Dependencies] = {}  # of edge values

    def run(self) -> Program:
        for step in self.program.steps:
            self.new[step.name] = self._make(step)
        for value in self.program.output_values():
            self.new[value] = self._at(value, self.program[value].space)
        return self.finish()

    def _make(self, step: Step) -> str:
        if step.operation == "input":
            if step.space is Space.EDGE:
                self.needs[step.name] = IDENTITY[Space.EDGE]
            return self.make.keep(step)
        if step.space is not Space.EDGE:
            operands = (self._at(each, self.program[each].space) for each in step.operands)
            return self._add(step, *operands, **dict(step.attributes))
        if step.operation == "expand":
            coarse = self.program[step.operands[0]].space
            self.needs[step.name] = IDENTITY[coarse]
            return self.new[step.operands[0]]
        if not step.operands:  # dropout's mask: another number on every edge
            self.needs[step.name] = IDENTITY[Space.EDGE]
            return self._add(step, **dict(step.attributes))
        return self._shrink(step)

    def _shrink(self, step: Step) -> str:
        edge_operands = [each for each in step.operands if self.program[each].space is Space.EDGE]
        needs = frozenset[str]().union(*(self.needs[each] for each in edge_operands))
        attributes = dict(step.attributes)
        if attributes.get("way") == "relation":
            needs |= {"relation"}
        space = choose_space(needs)
        if step.operation in POLES and space in (Space.NODE, Space.TARGET, Space.RELATION):
            # A node or relation may have no edge, and what no edge asks for may divide by zero: the
            # gradient there would be 0 times infinity. A pair has an edge.
            space = Space.TARGET_PAIR if space is Space.TARGET else Space.SOURCE_PAIR
        self.needs[step.name] = IDENTITY[space]
        if "way" in attributes and attributes["way"] is not None:
            weight = self.program[step.operands[1]].space
            attributes["way"] = None if weight is space else find_way(space, weight)
        operands = [
            self._at(each, space) if self.program[each].space is Space.EDGE else self.new[each]
            for each in step.operands
        ]
        return self._add(step, *operands, **attributes)

    def _add(self, step: Step, *operands: str, **attributes: object) -> str:
        return self.make.add(
            step.operation, *operands, name=step.name, line=step.line, **attributes
        )

    def _at(self, value: str, space: Space) -> str:
        """The new value of `value`, with rows over `space`."""
        made = self.make.steps[self.new[value]]
        if made.space is space:
            return made.name
        way = EDGE_WAYS[made.space] if space is Space.EDGE else find_way(space, made.space)
        if way is None:
            raise ValueError(f"{made.name} over {made.space.value} does not reach {space.value}")
        return self.make.add("expand", made.name, to=space, way=way)
