"""Linear maps in the order that costs least: weights by weights first, where that shrinks the work."""

from __future__ import annotations

from math import prod

from shorthaul.relational.ir.program import Program
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step
from shorthaul.relational.passes.rewriting import GraphSizes, Rewriter, rewrite


def multiply_weights_first(program: Program, sizes: GraphSizes) -> Program:
    """Fold a weight into the one before it.

    Rewrites::

        z = linear x, W {way=relation}       : 64 over target pair     # pairs * 64 * 64
        l = linear z, q {way=all}            : 1  over target pair     # pairs * 64
        ->
        Wq = linear W, q {way=all}           : 64 1 over relation      # relations * 64 * 64
        l  = linear x, Wq {way=relation}     : 1  over target pair     # pairs * 64

    and the same for `l = sum (multiply z, a)`, an inner product with a weight. Taken only where the
    multiplications that are left are fewer, counting that `z` may still be needed.
    """

    def rule(rewriter: Rewriter, step: Step) -> str | None:
        return _fold_linear(rewriter, step, sizes) or _fold_dot(rewriter, step, sizes)

    return rewrite(program, rule)


def _fold_linear(rewriter: Rewriter, step: Step, sizes: GraphSizes) -> str | None:
    if step.operation != "linear" or step["transposed"] or step.space.is_small:
        return None
    inner = rewriter.old(step.operands[0])
    if inner.operation != "linear" or inner["transposed"]:
        return None
    x, first = (rewriter.old(each) for each in inner.operands)
    second = rewriter.old(step.operands[1])
    if len(first.shape) != len(second.shape) or second.space not in (Space.ONE, first.space):
        return None
    folded = (*first.shape[:-1], second.shape[-1])
    if not _is_cheaper(rewriter, sizes, inner, first, second.shape, folded):
        return None
    make = rewriter.make
    way = _weight_way(first.space, second.space)
    product = make.add(
        "linear", rewriter.new[first.name], rewriter.new[second.name], way=way, transposed=False
    )
    return make.add(
        "linear",
        rewriter.new[x.name],
        product,
        name=step.name,
        way=inner["way"],
        transposed=False,
    )


def _fold_dot(rewriter: Rewriter, step: Step, sizes: GraphSizes) -> str | None:
    if step.operation != "sum":
        return None
    product = rewriter.old(step.operands[0])
    if product.operation != "multiply" or step["axes"] != (len(product.shape) - 1,):
        return None
    for left, right in (product.operands, product.operands[::-1]):
        found = _match_projection(rewriter, left)
        vector = rewriter.old(right)
        if found is None or vector.operation != "expand" or vector.shape != product.shape:
            continue
        weight = rewriter.old(vector.operands[0])
        inner = found
        first = rewriter.old(inner.operands[1])
        if weight.space not in (Space.ONE, first.space) or len(first.shape) != 2:
            continue
        if vector["way"] not in ("all", inner["way"]):
            continue
        heads = prod(product.shape[:-1])
        folded = (first.shape[0], heads)
        if not _is_cheaper(rewriter, sizes, inner, first, (first.shape[1], 1), folded):
            continue
        return _make_folded_dot(rewriter, step, inner, weight, heads)
    return None


def _make_folded_dot(rewriter: Rewriter, step: Step, inner: Step, vector: Step, heads: int) -> str:
    make = rewriter.make
    x, first = (rewriter.old(each) for each in inner.operands)
    rows, columns = first.shape
    parts = make.add("reshape", rewriter.new[first.name], shape=(rows, heads, columns // heads))
    weight = rewriter.new[vector.name]
    if vector.space is not first.space:
        weight = make.add("expand", weight, to=first.space, way="all")
    weight = make.add("reshape", weight, shape=(1, heads, columns // heads))
    products = make.add("sum", make.add("multiply", parts, weight), axes=(2,))
    matrix = make.add("reshape", products, shape=(rows, heads))
    result = make.add("linear", rewriter.new[x.name], matrix, way=inner["way"], transposed=False)
    return make.add("reshape", result, shape=step.shape)


def _match_projection(rewriter: Rewriter, name: str) -> Step | None:
    step = rewriter.old(name)
    if step.operation == "reshape":
        step = rewriter.old(step.operands[0])
    is_projection = (
        step.operation == "linear" and not step["transposed"] and not step.space.is_small
    )
    return step if is_projection else None


def _is_cheaper(
    rewriter: Rewriter,
    sizes: GraphSizes,
    inner: Step,
    first: Step,
    second: tuple[int, ...],
    folded: tuple[int, ...],
) -> bool:
    rows = sizes[inner.space]
    before = rows * prod(second)
    if len(_real_users(rewriter, inner.name)) <= 1 and inner.name not in rewriter.outputs:
        before += rows * prod(first.shape)
    after = rows * prod(folded) + sizes[first.space] * prod(first.shape) * second[-1]
    return after < before


def _real_users(rewriter: Rewriter, name: str) -> list[Step]:
    found = []
    for user in rewriter.users[name]:
        if user.operation == "reshape":
            found += _real_users(rewriter, user.name)
        else:
            found.append(user)
    return found


def _weight_way(first: Space, second: Space) -> str | None:
    return None if first is second else "all"
