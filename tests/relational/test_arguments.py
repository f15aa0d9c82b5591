"""Arguments: cast as autocast would, read from tables, and given back in the caller's order."""

import torch

import shorthaul as sh
from shorthaul.relational.arguments import (
    cast_as_autocast,
    prepare_arguments,
    read_features,
    return_gradient,
)
from shorthaul.relational.topology import Topology
from tests.relational.programs import draw_inputs, everything, record, sample_graph


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
