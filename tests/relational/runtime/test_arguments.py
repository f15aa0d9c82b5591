"""Arguments: cast as autocast would, read from tables, and given back in the caller's order."""

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import LayerArgumentError
from shorthaul.relational.runtime.arguments import (
    cast_as_autocast,
    prepare_arguments,
    read_features,
    return_gradient,
)
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import (
    attend,
    convolve,
    draw_inputs,
    everything,
    record,
    sample_graph,
)


def test_autocast_leaves_doubles_and_whole_numbers():
    given = {
        "x": torch.ones(2),
        "wide": torch.ones(2, dtype=torch.float64),
        "ids": torch.ones(2, dtype=torch.int64),
        "absent": None,
    }
    assert cast_as_autocast(given) is given
    with torch.autocast("cpu", torch.bfloat16):
        cast = cast_as_autocast(given)
    assert cast["x"].dtype is torch.bfloat16
    assert cast["wide"] is given["wide"]
    assert cast["ids"] is given["ids"]
    assert cast["absent"] is None


def test_memory_of_a_table_is_shared_and_rows_are_gathered():
    x = torch.arange(8.0).reshape(4, 2)
    table = sh.unified(x)
    assert read_features(table).data_ptr() == table.data_ptr()
    assert type(read_features(table)) is torch.Tensor
    assert torch.equal(read_features(table, torch.tensor([2, 0])), x[[2, 0]])
    assert read_features(x) is x


def test_edges_come_back_in_the_order_they_were_given():
    program, topology = record(everything), Topology.of(sample_graph())
    given = {name: value.detach() for name, value in draw_inputs(program, topology).items()}
    given = {
        step.name: given[step.name].reshape(*topology.tensor_shape(step.space), *step.shape)
        for step in program.inputs
    }
    prepared = prepare_arguments(program, topology, given)
    assert not torch.equal(prepared["detail"], given["detail"])
    for name, value in prepared.items():
        returned = return_gradient(program, topology, name, value, given[name])
        assert torch.equal(returned, given[name]), name


def test_unknown_keywords_of_a_layer_are_named_with_what_was_meant():
    with pytest.raises(LayerArgumentError) as told:
        attend(width=4, out=2, heads=2, droput=0.1, widht=3)
    assert str(told.value) == (
        "`attend` was made with droput, widht, which it does not have.\n"
        "  Did you mean width? It takes relations, node_types, without, memory_budget, width, heads, out."
    )
    with pytest.raises(LayerArgumentError, match="Did you mean relations"):
        attend(width=4, out=2, heads=2, relation=3)


@pytest.mark.parametrize(
    ("relations", "right"),
    [
        (1, "from_edge_index(edge_index, num_nodes=...)"),
        (3, "from_edge_index(edge_index, edge_type, num_nodes=..., num_relations=3)"),
    ],
)
def test_the_order_of_calls_in_pyg_is_answered_with_ours(relations, right):
    module = convolve(relations=relations, width=4, out=2)
    with pytest.raises(LayerArgumentError) as told:
        module(torch.ones(3, 4), torch.tensor([[0], [1]]))
    typed = ", edge_type" if relations > 1 else ""
    assert str(told.value) == (
        "`convolve` was called with a Tensor where its graph goes.\n"
        f"  Wrong: layer(x, edge_index{typed}). Right: layer(graph, x) with\n"
        f"  graph = sh.RelationalGraph.{right}, or a Block."
    )


def test_features_that_a_layer_does_not_have_are_named():
    module, graph = convolve(width=4, out=2), sh.RelationalGraph.from_edges([0], [1])
    x = torch.ones(2, 4)
    with pytest.raises(LayerArgumentError, match=r"called with 2 features, and has 1\.\n.*then x"):
        module(graph, x, x)
    with pytest.raises(LayerArgumentError, match="called with x twice"):
        module(graph, x, x=x)
    with pytest.raises(
        LayerArgumentError, match=r"edge_attr, which it does not have\.\n  It takes x"
    ):
        module(graph, x, edge_attr=x)
