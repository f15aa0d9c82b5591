"""Small certainties: equal steps made once, steps that change nothing, concatenations taken apart."""

from __future__ import annotations

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite


def canonicalize(program: Program, sizes: GraphSizes) -> Program:
    """One form for what can be said in several, and each value made once.

    Rewrites::

        a = reshape x {shape=4 1};  b = reshape a {shape=4}      ->  b = x           (x has shape 4)
        a = negative x;  b = negative a                          ->  b = x
        a = add x, negative y                                    ->  a = subtract x, y
        a = exp x;  b = exp x                                    ->  a alone
        a = divide x, y                                          ->  a = multiply x, reciprocal y
                                                                     (y is narrower: divided once)
    """
    return rewrite(program, _canonical)


def _canonical(rewriter: Rewriter, step: Step) -> str | None:
    make = rewriter.make
    operands = [make.steps[rewriter.new[each]] for each in step.operands]
    if step.operation == "reshape":
        (x,) = operands
        while x.operation == "reshape":
            x = make.steps[x.operands[0]]
        return x.name if x.shape == step.shape else make.add("reshape", x.name, shape=step.shape)
    if step.operation == "broadcast" and operands[0].shape == step.shape:
        return operands[0].name
    if step.operation in ("negative", "transpose") and operands[0].operation == step.operation:
        return operands[0].operands[0]
    if step.operation == "divide" and operands[1].size < step.size:
        once = make.add("reciprocal", operands[1].name)
        return make.add("multiply", operands[0].name, once, name=step.name, line=step.line)
    if step.operation == "scale" and step["by"] == 1.0:
        return operands[0].name
    if step.operation == "add" and operands[1].operation == "negative":
        return make.add("subtract", operands[0].name, operands[1].operands[0], name=step.name)
    if step.operation == "add" and operands[0].operation == "negative":
        return make.add("subtract", operands[1].name, operands[0].operands[0], name=step.name)
    return None


def remove_concatenations(program: Program, sizes: GraphSizes) -> Program:
    """Multiply the parts of a concatenation by the parts of the weight.

    Rewrites::

        c = concat a, b                     : 128 over edge
        y = linear c, w {way=relation}      : 64  over edge
        ->
        w1, w2 = the rows of w for a, for b
        y = add (linear a, w1), (linear b, w2)

    The inner product of a concatenation is split in the same way. Values that are used otherwise
    keep their concatenation.
    """
    return rewrite(program, _split_concat)


def _split_concat(rewriter: Rewriter, step: Step) -> str | None:
    make = rewriter.make
    if step.operation == "linear" and not step["transposed"]:
        joined = rewriter.old(step.operands[0])
        weight = make.steps[rewriter.new[step.operands[1]]]
        if joined.operation != "concat" or joined["axis"] != len(joined.shape) - 1:
            return None
        total, start = "", 0
        axis = len(weight.shape) - 2
        for part in joined.operands:
            stop = start + rewriter.old(part).shape[-1]
            rows = make.add("slice", weight.name, axis=axis, start=start, stop=stop)
            product = make.add(
                "linear", rewriter.new[part], rows, way=step["way"], transposed=False
            )
            total = make.add("add", total, product) if total else product
            start = stop
        return total
    if step.operation == "sum" and step["axes"] == (len(_shape(rewriter, step)) - 1,):
        return _split_dot(rewriter, step)
    return None


def _shape(rewriter: Rewriter, step: Step) -> tuple[int, ...]:
    return rewriter.old(step.operands[0]).shape


def _split_dot(rewriter: Rewriter, step: Step) -> str | None:
    make = rewriter.make
    product = rewriter.old(step.operands[0])
    if product.operation != "multiply":
        return None
    for joined_name, other_name in (product.operands, product.operands[::-1]):
        joined = rewriter.old(joined_name)
        other = make.steps[rewriter.new[other_name]]
        axis = len(joined.shape) - 1
        if joined.operation != "concat" or joined["axis"] != axis:
            continue
        if other.shape[-1:] != joined.shape[-1:]:
            continue
        total, start = "", 0
        for part in joined.operands:
            stop = start + rewriter.old(part).shape[-1]
            piece = make.add("slice", other.name, axis=len(other.shape) - 1, start=start, stop=stop)
            scaled = make.add("multiply", rewriter.new[part], piece)
            one = make.add("sum", scaled, axes=(len(make.steps[scaled].shape) - 1,))
            total = make.add("add", total, one) if total else one
            start = stop
        return total
    return None
