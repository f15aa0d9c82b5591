"""A layer of one relation as a layer of many: weights of their own for each, their results added up."""

from __future__ import annotations

from shorthaul.errors import RelationalProgramError
from shorthaul.relational.ir.program import Builder, Program, drop_unused
from shorthaul.relational.ir.spaces import Space, find_way
from shorthaul.relational.ir.step import Step

SHARE = "share"  # the input with what each relation's result is multiplied by

# Where a value of one relation is, for many.
_TYPED = {
    Space.ONE: Space.RELATION,
    Space.NODE: Space.SOURCE_PAIR,
    Space.TARGET: Space.TARGET_PAIR,
    Space.EDGE: Space.EDGE,
}
_WAYS = {"all": "relation", "source": "source_pair", "target": "target_pair"}
# What commutes with a sum of rows: of two operands, the first is the one that is summed.
_LINEAR = (
    "linear", "multiply", "divide", "scale", "negative", "reshape", "sum", "broadcast", "transpose",
    "slice", "place",
)  # fmt: skip


def repeat_over_relations(program: Program, *, is_shared: bool = False) -> Program:
    """The sum over relations of what `program` computes for each; with `is_shared`, each times its share.

    Rewrites::

        y = linear x, W {way=all}                   : 8 over node         # W : 4 8 over one
        s = expand y {way=source}                   : 8 over edge
        out = reduce s {kind=max, way=target}       : 8 over target
        ->
        p = expand x {way=node}                     : 4 over source pair
        y = linear p, W {way=relation}              : 8 over source pair  # W : 4 8 over relation
        s = expand y {way=source_pair}              : 8 over edge
        h = reduce s {kind=max, way=target_pair}    : 8 over target pair
        out = reduce h {kind=sum, way=node}         : 8 over target

    A sum over the edges that only linear steps follow is left out: its rows are added up once, over all
    relations. A target that has no edge of a relation hears nothing from it, so what a layer adds to
    every target (a bias, the target itself) must not be part of `program`.
    """
    return _Repetition(program, is_shared).run()


class _Repetition:
    def __init__(self, program: Program, is_shared: bool) -> None:
        self.program, self.make, self.is_shared = program, Builder(program.name), is_shared
        self.new: dict[str, str] = {}
        self.users = program.users()
        self.left_out = self._find_left_out()

    def run(self) -> Program:
        for step in self.program.steps:
            self.new[step.name] = self._make(step)
        outputs = [(name, self._total(value)) for name, value in self.program.outputs]
        return drop_unused(self.make.build(outputs))

    def _total(self, value: str) -> str:
        """A result of all relations; what is per edge stays."""
        if self.program[value].space is Space.EDGE:
            return self.new[value]
        space = self.make.steps[self.new[value]].space
        if space not in (Space.EDGE, Space.TARGET_PAIR):
            raise self._refuse(self.program[value])
        made = self.new[value]
        if self.is_shared:
            self.make.input(SHARE, (), Space.RELATION, "weight")
            share = self.make.add("expand", SHARE, to=space, way="relation")
            made = self.make.add("multiply", made, share)
        way = "target" if space is Space.EDGE else "node"
        return self.make.add("reduce", made, kind="sum", way=way, name=value)

    def _find_left_out(self) -> set[str]:
        """The sums over edges that only linear steps follow, and these steps."""
        outputs, found = set(self.program.output_values()), set[str]()
        for step in reversed(self.program.steps):
            is_sum = step.operation == "reduce" and step["kind"] == "sum"
            is_linear = step.operation in _LINEAR and step.space is Space.TARGET
            follows = all(
                each.name in found and each.operation != "reduce" and each.operands[0] == step.name
                and step.name not in each.operands[1:]
                for each in self.users[step.name]
            )  # fmt: skip
            is_read = bool(self.users[step.name]) or step.name in outputs
            if (is_sum or is_linear) and is_read and follows:
                found.add(step.name)
        summed = {each for each in found if self.program[each].operation == "reduce"}
        for step in self.program.steps:  # those that a sum leads to
            if step.name in found and step.operands[0] in summed:
                summed.add(step.name)
        return summed

    def _make(self, step: Step) -> str:
        if step.operation == "input":
            if step.space not in _TYPED:
                raise self._refuse(step)
            space = Space.RELATION if step.space is Space.ONE else step.space
            return self.make.input(step.name, step.shape, space, step["kind"], step.line)
        if step.operation == "expand":
            return self._expand(step)
        attributes = dict(step.attributes)
        if step.operation in ("reduce", "count"):
            if step["way"] != "target":
                raise self._refuse(step)
            if step.name in self.left_out:
                return self.new[step.operands[0]]
            return self._add(step, step.operands, attributes | {"way": "target_pair"})
        if step.operation in ("restrict", "extend") or attributes.get("of", Space.EDGE) is not (
            Space.EDGE
        ):
            raise self._refuse(step)
        return self._compute(step, attributes)

    def _expand(self, step: Step) -> str:
        (operand,) = step.operands
        if step["way"] not in _WAYS or step["to"] not in _TYPED:
            raise self._refuse(step)
        made = self.make.steps[self.new[operand]]
        if made.space in (Space.NODE, Space.TARGET):
            return self._add(step, step.operands, dict(step.attributes))
        if operand in self.left_out:
            raise self._refuse(step)
        attributes = {"to": _TYPED[step["to"]], "way": _WAYS[step["way"]]}
        return self._add(step, step.operands, attributes)

    def _compute(self, step: Step, attributes: dict[str, object]) -> str:
        operands = step.operands[:1] if step.operation == "linear" else step.operands
        made = [self.make.steps[self.new[each]].space for each in operands]
        plain = len(set(made)) == 1 and step.operation != "linear"
        space = made[0] if plain else _TYPED[step.space]
        if step.name in self.left_out:
            space = Space.EDGE
        found = [self._at(each, space) for each in operands]
        if step.operation == "linear":
            found.append(self.new[step.operands[1]])
            attributes["way"] = None if space is Space.RELATION else "relation"
        return self.make.add(step.operation, *found, name=step.name, line=step.line, **attributes)

    def _at(self, value: str, space: Space) -> str:
        """The new value of `value`, with rows over `space`."""
        made = self.make.steps[self.new[value]]
        if made.space is space:
            return made.name
        ways = {Space.TARGET_PAIR: "target_pair", Space.TARGET: "target"}
        way = ways.get(made.space) if space is Space.EDGE else find_way(space, made.space)
        if made.space is Space.RELATION:
            way = "relation"
        if way is None:
            raise self._refuse(self.program[value])
        return self.make.add("expand", made.name, to=space, way=way)

    def _add(self, step: Step, operands: tuple[str, ...], attributes: dict[str, object]) -> str:
        made = (self.new[each] for each in operands)
        return self.make.add(step.operation, *made, name=step.name, line=step.line, **attributes)

    def _refuse(self, step: Step) -> RelationalProgramError:
        return RelationalProgramError(
            step.operation, "cannot be repeated for each relation", step.text(), step.line
        )
