"""A program of one relation, repeated: the sum over relations of what it computes for each alone."""

import pytest
import torch

from shorthaul.errors import RelationalProgramError
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import (
    EdgeFeature,
    NodeFeature,
    TargetFeature,
    Weight,
    leaky_relu,
    linear,
    over_nodes,
    reduce_max,
    reduce_mean,
    softmax,
    total,
)
from shorthaul.relational.backends import reference
from shorthaul.relational.frontend.trace import trace
from shorthaul.relational.passes.over_relations import repeat_over_relations
from shorthaul.relational.topology.topology import Topology


def means(g, x: NodeFeature(3), weight: Weight(3, 2)):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard = reduce_mean(e.source.x)
        n.out = linear(n.heard, weight) / 2
    return n.out


def peaks(g, x: NodeFeature(3), weight: Weight(3, 2), strength: EdgeFeature(1)):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard = reduce_max(e.source.x * e.strength)
        n.out = linear(n.heard, weight)
    return n.out


def attends(g, x: NodeFeature(3), other: TargetFeature(2), weight: Weight(3, 2), bias: Weight(2)):
    for n in g.nodes():
        n.value = linear(n.x, weight) + bias
    for e in g.edges():
        e.alpha = softmax(leaky_relu(total(e.source.value * e.target.other)))
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.source.value * e.alpha
        n.out = n.heard.reshape(2, 1) * n.other.reshape(2, 1)
    return n.out


def spreads(g, x: NodeFeature(3)):
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.total += e.source.x
        n.total = over_nodes(n.total)
    return n.total


def _draw(program, relations):
    generator = torch.Generator().manual_seed(4)
    count = 30
    source, target = torch.randint(6, (2, count), generator=generator)
    relation = torch.randint(relations - 1, (count,), generator=generator)  # one has no edges
    graph = RelationalGraph.from_edges(
        source, target, relation, num_nodes=7, num_relations=relations
    )
    rows = {"node": 7, "target": 7, "edge": count, "weight": relations}
    given = {
        step.name: torch.randn(rows[step["kind"]], *step.shape, generator=generator).double()
        for step in program.inputs
    }
    return graph, given


def _run(program, graph, given):
    topology = Topology.of(graph)
    ordered = {
        step.name: given[step.name][topology.edge_ids.long()]
        if step["kind"] == "edge"
        else given[step.name]
        for step in program.inputs
    }
    return reference.run(program, topology, ordered)["out"]


@pytest.mark.parametrize("function", [means, peaks, attends])
@pytest.mark.parametrize("is_shared", [False, True])
def test_the_sum_of_all_relations(function, is_shared):
    program = trace(function, {})
    repeated = repeat_over_relations(program, is_shared=is_shared)
    graph, given = _draw(repeated, 4)
    found = _run(repeated, graph, given)
    expected = torch.zeros_like(found)
    for number in range(4):
        chosen = graph.relation == number
        alone = RelationalGraph.from_edges(
            graph.source[chosen], graph.target[chosen], num_nodes=graph.num_nodes
        )
        mine = {
            step.name: given[step.name][chosen]
            if step["kind"] == "edge"
            else given[step.name][number : number + 1]
            if step["kind"] == "weight"
            else given[step.name]
            for step in program.inputs
        }
        share = given["share"][number] if is_shared else 1
        expected += _run(program, alone, mine) * share
    torch.testing.assert_close(found, expected)


def test_a_sum_that_only_linear_steps_follow_is_taken_once():
    text = repeat_over_relations(trace(means, {})).text()
    assert text.count("reduce") == 1
    assert "way=target}" in text.replace("kind=sum, ", "")


def test_what_reads_sums_at_sources_is_refused():
    with pytest.raises(RelationalProgramError, match="cannot be repeated for each relation"):
        repeat_over_relations(trace(spreads, {}))
