"""Whether a program is sound: run after every pass.

A pass that loses a value would otherwise be met in the middle of a user's step, or not at all. A program
is sound if every value is made once, before it is read, with the shape and rows that its operation
gives, and if it has the inputs and results that it had.
"""

from __future__ import annotations

from shorthaul.errors import CompilerDefectError, RelationalProgramError
from shorthaul.relational.ir.operations import infer
from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.step import Step


def verify_program(program: Program, stage: str, before: Program | None = None) -> Program:
    """`program`, if it is sound and goes on from `before`: the same inputs, and results that begin
    with the same ones; else `CompilerDefectError`, which names the stage.
    """
    made: dict[str, Step] = {}
    for step in program.steps:
        problem = _find_problem(step, made)
        if problem:
            raise CompilerDefectError(program.name, stage, problem, step.line)
        made[step.name] = step
    for name, value in program.outputs:
        if value not in made:
            raise CompilerDefectError(
                program.name, stage, f"the result `{name}` is `{value}`, which nothing makes"
            )
    if before is not None:
        _verify_signature(program, stage, before)
    return program


def _find_problem(step: Step, made: dict[str, Step]) -> str:
    if step.name in made:
        return f"`{step.name}` is made twice"
    missing = [each for each in step.operands if each not in made]
    if missing:
        return f"`{step.name}` reads `{missing[0]}`, which nothing has made by then"
    if step.operation == "input":
        return ""
    operands = tuple(made[each] for each in step.operands)
    try:
        expected = infer(step.operation, operands, dict(step.attributes))
    except RelationalProgramError as error:
        return f"`{step.name}` is not sound: {error}"
    if expected == (step.shape, step.space):
        return ""
    shape, space = expected
    return (
        f"`{step.name}` is {step.shape} per {step.space.value}, and "
        f"`{step.operation}` gives {shape} per {space.value}"
    )


def _verify_signature(program: Program, stage: str, before: Program) -> None:
    inputs = set(program.inputs)
    for step in before.inputs:
        if step not in inputs:
            raise CompilerDefectError(program.name, stage, f"the input `{step.name}` is gone")
    for number, (name, value) in enumerate(before.outputs):
        got = program.outputs[number] if number < len(program.outputs) else ("", "")
        kinds = [
            (each[0], whole[each[1]].shape, whole[each[1]].space) if each[1] else ()
            for each, whole in (((name, value), before), (got, program))
        ]
        if kinds[0] != kinds[1]:
            raise CompilerDefectError(
                program.name, stage, f"the result `{name}` has become another: {kinds[1]}"
            )
