"""The compiler's stages for one layer, as the pages show them: printed anew whenever they are rendered.

The layer is relational graph attention at 64 features, on a graph of the sizes of FB15k-237 with inverse
relations.
"""

from __future__ import annotations

from typing import Any

from shorthaul.relational import NodeFeature, Weight, layer, leaky_relu, linear, softmax
from shorthaul.relational.inspection.explain import Explanation, explain_definition, guess_sizes
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import GraphSizes

WIDTHS = {"width": 64, "out": 64}
PAIRS = 161_922  # that occur, on either side: many edges share theirs
PICTURE = "docs/rgat_flow.svg"


@layer
def attention(
    g: Any,
    x: NodeFeature("width"),  # noqa: ARG001 - read through symbols
    weight: Weight("relation", "width", "out"),
    query: Weight("out", 1),
    key: Weight("out", 1),
) -> Any:
    """The layer that docs/relational.md writes."""
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        asked = linear(linear(e.target.x, weight[e.relation]), query)
        e.alpha = softmax(leaky_relu(asked + linear(e.value, key)))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.value
    return n.out


def explain_attention(*, trains: bool) -> Explanation:
    """Its compilation for the graph, with or without gradients."""
    guessed = guess_sizes(nodes=14_541, edges=620_232, relations=474)
    pairs = (Space.SOURCE_PAIR, Space.TARGET_PAIR)
    sizes = GraphSizes({space: PAIRS if space in pairs else guessed[space] for space in Space})
    return explain_definition(attention, WIDTHS, sizes, gradients=None if trains else [])


def render_stages() -> str:
    """The forward program as written and after the last pass, its kernels, and their cost."""
    explained = explain_attention(trains=False)
    programs = dict(explained.compilation.stages)
    costs = explained.estimate()
    assert costs is not None
    parts = [
        ("As recorded:", programs["as written"].text()),
        ("After the passes:", explained.compilation.program.text()),
        ("Its kernels:", explained.compilation.plan.text()),
        ("What they cost, for FB15k-237 with inverse relations in float32:", costs.text()),
        ("With gradients:", explain_attention(trains=True).compilation.plan.text()),
    ]
    return "\n\n".join(f"{title}\n\n```\n{text}\n```" for title, text in parts)


def draw_stages() -> str:
    """The flow of data of its forward kernels."""
    return explain_attention(trains=False).picture()
