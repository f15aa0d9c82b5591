"""What `explain` tells: every stage, estimates for a graph, and a picture in a file."""

import pytest
import torch

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.inspection.explain import (
    describe_sizes,
    explain_definition,
    guess_sizes,
    read_source,
)
from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.passes.rewriting import GraphSizes
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import SIZES, attend, convolve, sample_graph, widths_of

GRAPH = sample_graph(nodes=30, edges=400)


def _headings(text):
    return [line.strip("= ") for line in text.splitlines() if line.startswith("== ")]


def test_the_stages_in_order():
    text = explain_definition(attend, SIZES, guess_sizes(nodes=9, edges=40, relations=4)).text()
    headings = _headings(text)
    assert headings[:2] == ["source", "as written"]
    assert headings[-3:] == ["kernels", "estimate", "generated source"]
    assert {"compact", "differentiate"} <= set(headings)
    assert "def attend(" in text
    assert "e.alpha = softmax(leaky_relu(target + linear(e.value, key), 0.2))" in text


def test_one_stage_alone():
    explained = explain_definition(attend, SIZES, guess_sizes(nodes=9, edges=40, relations=4))
    assert _headings(explained.text("compact"))[0] == "compact"
    with pytest.raises(LayerArgumentError, match="no stage 'fusion'"):
        explained.text("fusion")


def test_a_layer_is_explained_for_a_graph_or_for_its_last_call(tmp_path):
    made = convolve(relations=16, **widths_of(convolve))
    assert "not compiled yet" in made.explain()
    with pytest.raises(LayerArgumentError, match="has not been called"):
        made.function.explanation()
    before = made.explain(GRAPH, stage="estimate", picture=tmp_path / "flow.svg")
    assert "30 nodes" in before
    assert (tmp_path / "flow.svg").read_text().startswith("<svg ")
    made(GRAPH, torch.randn(30, 5))
    assert "30 nodes" in made.explain(stage="estimate")
    other = sample_graph(nodes=20, edges=50)
    assert "20 nodes" in made.explain(other, stage="estimate")
    with pytest.raises(LayerArgumentError, match=r"asked for as flow.png"):
        made.explain(picture="flow.png")


def test_a_graph_that_is_gone_leaves_the_stages():
    made = convolve(relations=16, **widths_of(convolve))
    graph = sample_graph(nodes=12, edges=30)
    made(graph, torch.randn(12, 5))
    del graph
    headings = _headings(made.explain())
    assert "kernels" in headings
    assert "estimate" not in headings


def test_guessed_sizes_are_near_those_of_a_random_graph():
    graph = sample_graph(nodes=60, edges=2000)
    sizes = GraphSizes.of(Topology.of(graph))
    guessed = guess_sizes(nodes=60, edges=2000, relations=4)
    for space in (Space.NODE, Space.TARGET, Space.EDGE):
        assert guessed[space] == sizes[space]
    assert guess_sizes(nodes=0, edges=0, relations=0)[Space.SOURCE_PAIR] == 0
    assert guess_sizes(nodes=10, edges=10**6, relations=5)[Space.SOURCE_PAIR] == 50
    assert "1,000,000 edges" in describe_sizes(guess_sizes(nodes=10, edges=10**6, relations=5))
    with pytest.raises(LayerArgumentError, match="negative size"):
        guess_sizes(nodes=-1, edges=1, relations=1)


def test_functions_without_text_have_no_source():
    assert read_source(eval("lambda g: g")) == ""
    assert read_source(convolve.function).startswith("@layer\ndef convolve(")
