"""Products at every remainder of rows and widths, against PyTorch."""

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import NodeFeature, Weight, layer, linear
from shorthaul.relational.backends.cpp.emit_products import (
    ROWS_PER_OUTER_TILE,
    emit_outer_sum,
    emit_product,
)
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.ir.step import Step

# Sums of up to 3,000 products of standard normal numbers: about 50, and a tile that is lost is missed by
# as much. In bfloat16 the gradients of each node are rounded, and so are the sums, by half of 2**-8.
TOLERANCES = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-3},
    torch.bfloat16: {"rtol": 2**-9, "atol": 0.5},
}


def test_sizes_are_constants_of_the_text():
    x = Step("x", "input", (), (2, 5), Space.NODE)
    w = Step("w", "input", (), (2, 5, 7), Space.NODE_TYPE)
    y = Step("y", "linear", ("x", "w"), (2, 7), Space.NODE, (("transposed", True), ("way", "type")))
    text = emit_product("f", y, x, w)
    assert "heads = 2, inner = 1, depth = 5, width = 7" in text
    assert "depth, width, true)" in text
    d = Step(
        "d", "outer", ("x", "y"), (2, 5, 7), Space.NODE_TYPE, (("heads", True), ("way", "type"))
    )
    assert "heads = 2, inner = 1, depth = 5, width = 7" in emit_outer_sum("f", d, x, y)


def test_no_heads_are_no_work():
    x = Step("x", "input", (), (0, 2, 5), Space.NODE)
    w = Step("w", "input", (), (0, 5, 7), Space.NODE_TYPE)
    y = Step(
        "y", "linear", ("x", "w"), (0, 2, 7), Space.NODE, (("transposed", False), ("way", "type"))
    )
    assert "heads = 0, inner = 0, depth = 5, width = 7" in emit_product("f", y, x, w)
    shape, attributes = (0, 5, 7), (("heads", True), ("way", "type"))
    d = Step("d", "outer", ("x", "y"), shape, Space.NODE_TYPE, attributes)
    assert "heads = 0, inner = 0, depth = 5, width = 7" in emit_outer_sum("f", d, x, y)


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (3, 9), (17, 8), (20, 23), (64, 2)])
def test_every_remainder(depth, width):
    @layer
    def multiply(g, x: NodeFeature(depth), w: Weight("relation", depth, width)):
        for e in g.edges():
            e.out = linear(e.source.x, w[e.relation])
        return e.out

    generator = torch.Generator().manual_seed(depth)
    relation = torch.repeat_interleave(torch.arange(9), torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 300]))
    source = torch.randint(40, relation.shape, generator=generator)
    graph = RelationalGraph.from_edges(source, source, relation, num_nodes=40, num_relations=9)
    made = multiply(relations=9).double()
    x = torch.randn(40, depth, dtype=torch.float64, generator=generator, requires_grad=True)
    out = made(graph, x)
    expected = torch.einsum("ei,eio->eo", x[source], made.w[relation])
    torch.testing.assert_close(out, expected)
    arrived = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    for one, other in zip(
        torch.autograd.grad(out, [x, made.w], arrived),
        torch.autograd.grad(expected, [x, made.w], arrived),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "width", "out"),
    [(1, 9, 10), (2, 9, 10), (3, 32, 48)],  # of the last, two heads are taken at once
)
def test_weights_of_relations_with_no_tile_one_and_several(dtype, heads, width, out):
    @layer
    def multiply(
        g, x: NodeFeature("heads", "width"), w: Weight("relation", "heads", "width", "out")
    ):
        for e in g.edges():
            e.out = linear(e.source.x, w[e.relation])
        return e.out

    tile = ROWS_PER_OUTER_TILE
    counts = torch.tensor([0, 1, tile, tile + 1, 0, 3 * tile - 1, 0])
    relation = torch.repeat_interleave(torch.arange(len(counts)), counts)
    generator = torch.Generator().manual_seed(heads)
    source = torch.randint(40, relation.shape, generator=generator)
    graph = RelationalGraph.from_edges(source, source, relation, num_nodes=40, num_relations=7)
    made = multiply(relations=len(counts), heads=heads, width=width, out=out).to(dtype)
    x = torch.randn(40, heads, width, generator=generator).to(dtype)
    arrived = torch.randn(len(relation), heads, out, generator=generator).to(dtype)
    (found,) = torch.autograd.grad(made(graph, x), [made.w], arrived)
    outer = torch.einsum("ehi,eho->ehio", x[source].double(), arrived.double())
    expected = torch.zeros(made.w.shape, dtype=torch.float64).index_add(0, relation, outer)
    torch.testing.assert_close(found.double(), expected, **TOLERANCES[dtype])
    assert not found[counts == 0].any()
