"""Running an author's function once, with symbols, to record its program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from shorthaul.errors import LayerLanguageError
from shorthaul.relational.frontend.declarations import Declaration
from shorthaul.relational.frontend.expressions import Expression, Recorder
from shorthaul.relational.frontend.symbols import FeatureArgument, GraphSymbol, WeightArgument
from shorthaul.relational.ir.program import Program, drop_unused
from shorthaul.relational.ir.spaces import Space


def read_declarations(function: Callable[..., Any]) -> dict[str, Declaration]:
    """The declared arguments of an author's function, after the graph."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    found = {}
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        annotation = parameter.annotation
        if isinstance(annotation, str):  # from __future__ import annotations
            annotation = eval(annotation, function.__globals__)
        if isinstance(annotation, Declaration):
            found[parameter.name] = annotation
        else:
            raise LayerLanguageError(
                f"`{parameter.name}` of {function.__name__} does not say what it is",
                f"annotate it: {parameter.name}: NodeFeature('width'), or TargetFeature, EdgeFeature, Weight; "
                "plain numbers are keyword-only",
                None,
            )
    return found


def trace(
    function: Callable[..., Any],
    sizes: Mapping[str, int],
    options: Mapping[str, Any] | None = None,
    absent: Collection[str] = (),
) -> Program:
    """The program of `function`, with every width a number; arguments in `absent` are None."""
    recorder = Recorder(function.__name__, function.__code__.co_filename)
    arguments: dict[str, Any] = {}
    declarations = read_declarations(function)
    for name, declaration in declarations.items():
        if name in absent:
            continue
        shape = declaration.resolve(sizes, name)
        value = recorder.make.input(name, shape, declaration.space, declaration.kind)
        if declaration.kind == "weight":
            arguments[name] = WeightArgument(recorder, value)
            continue
        values = recorder.edge_values if declaration.kind == "edge" else recorder.node_values
        values[name] = value
        arguments[name] = FeatureArgument(recorder, name, declaration.kind)
    given = {name: arguments.get(name) for name in declarations}
    with recorder:
        result = function(GraphSymbol(recorder), **given, **(options or {}))
    outputs = _read_result(recorder, result)
    return _rename(drop_unused(recorder.make.build(outputs)), recorder.names)


def _rename(program: Program, wanted: Mapping[str, str]) -> Program:
    """Give values the names that the author gave them."""
    new: dict[str, str] = {step.name: step.name for step in program.inputs}
    taken = set(new)
    for step in program.steps:
        base = wanted.get(step.name, step.operation)
        if step.name not in new:
            name, number = base, 0
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            new[step.name] = name
            taken.add(name)
    steps = tuple(
        replace(step, name=new[step.name], operands=tuple(new[each] for each in step.operands))
        for step in program.steps
    )
    return Program(
        program.name, steps, tuple((name, new[value]) for name, value in program.outputs)
    )


def _read_result(recorder: Recorder, result: Any) -> tuple[tuple[str, str], ...]:
    results = result if isinstance(result, tuple) else (result,)
    outputs = []
    for number, value in enumerate(results):
        if not isinstance(value, Expression) or value._space not in (
            Space.NODE,
            Space.TARGET,
            Space.EDGE,
        ):
            raise LayerLanguageError(
                f"{recorder.make.name} returned {value!r}",
                "return a value of nodes or edges, such as `return n.out`",
                None,
            )
        outputs.append(("out" if len(results) == 1 else f"out_{number}", value._value))
    return tuple(outputs)
