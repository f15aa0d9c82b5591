"""Whole heterogeneous models: `HeteroConv`, `to_hetero`, layers that find their widths, and all of it undone."""

import copy
import re

import pytest
import torch
from torch import nn

from shorthaul.errors import ExplainError
from shorthaul.explain import explain
from shorthaul.relational import accelerate

pytest.importorskip("torch_geometric.nn")

import torch_geometric.nn as pyg

pytestmark = pytest.mark.filterwarnings("ignore")

TYPES = (["a", "b"], [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")])
X = {"a": torch.randn(5, 3).double(), "b": torch.randn(4, 6).double()}
EDGES = {
    each: torch.randint(4, (2, 9), generator=torch.Generator().manual_seed(number))
    for number, each in enumerate(TYPES[1])
}


class Net(nn.Module):
    """What `to_hetero` makes heterogeneous."""

    def __init__(self):
        super().__init__()
        self.first = pyg.SAGEConv((-1, -1), 8)
        self.middle = nn.Linear(8, 8)
        self.last = pyg.GATConv((-1, -1), 4, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.last(self.middle(self.first(x, edge_index).relu()), edge_index)


class Model(nn.Module):
    """Two layers of mixed convolutions."""

    def __init__(self, width=-1):
        super().__init__()
        widths = {"a": 3, "b": 6} if width > 0 else {"a": -1, "b": -1}
        self.first = pyg.HeteroConv(
            {
                TYPES[1][0]: pyg.SAGEConv((widths["a"], widths["b"]), 8),
                TYPES[1][1]: pyg.GATConv((widths["b"], widths["a"]), 8, add_self_loops=False),
                TYPES[1][2]: pyg.GCNConv(widths["a"], 8),
            }
        )
        self.second = pyg.HeteroConv({each: pyg.SAGEConv((8, 8), 4) for each in TYPES[1]}, "mean")

    def forward(self, x, edges):
        hidden = {name: value.relu() for name, value in self.first(x, edges).items()}
        return self.second(hidden, edges)


def _kinds(model):
    return [(name, type(each)) for name, each in model.named_modules()]


def _attributes(model):
    """Names alone: a graph module of `torch.fx` has new values at every call."""
    return {name: set(vars(each)) for name, each in model.named_modules()}


def _close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_model_trains_on_with_its_optimizer_and_goes_back():
    model = Model(1).double()
    theirs, kinds, attributes = copy.deepcopy(model), _kinds(model), _attributes(model)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, theirs)]
    report = accelerate(model)
    assert not report.left
    assert [each.name for each in report.swapped if each.now.endswith("HeteroConv")] == [
        "first",
        "second",
    ]
    for _ in range(3):
        for each, optimizer in zip((model, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            sum(value.square().sum() for value in each(X, EDGES).values()).backward()
            optimizer.step()
    _close(model(X, EDGES), theirs(X, EDGES))
    assert list(model.state_dict()) == list(theirs.state_dict())
    _close(dict(model.named_parameters()), dict(theirs.named_parameters()))
    report.revert()
    assert _kinds(model) == kinds
    assert _attributes(model) == attributes
    _close(model(X, EDGES), theirs(X, EDGES))


def test_the_one_program_of_a_layer_is_explained():
    model = Model(1).double()
    accelerate(model)
    model(X, EDGES)
    text = explain(model.second)
    assert text.count("== one program for") == 1
    assert "a__x__b, b__y__a, a__z__a" in text
    assert "over relation" in text
    whole = explain(model)
    assert re.findall("^=== .*", whole, re.M) == [
        "=== first (HeteroConv) ===",
        "=== second (HeteroConv) ===",
    ]
    assert text in whole
    with pytest.raises(ExplainError):
        explain(Model(1))
    with pytest.raises(ExplainError):
        explain(pyg.SAGEConv(3, 2))


def test_layers_that_find_their_widths_are_swapped_after_their_first_call():
    model = Model().double()
    report = accelerate(model)
    assert set(report.waiting) == {
        "first",
        *(f"first.convs.<{'___'.join(each)}>" for each in TYPES[1]),
    }
    assert "swapped later" in _print(report)
    expected = model(X, EDGES)
    assert not report.waiting
    assert not report.left
    assert type(model.first).__module__.startswith("shorthaul")
    _close(model(X, EDGES), expected)
    report.revert()
    assert {type(each).__module__.partition(".")[0] for each in model.first.convs.children()} == {
        "torch_geometric"
    }
    _close(model(X, EDGES), expected)


def test_nobody_waits_after_revert():
    model = Model().double()
    report = accelerate(model)
    report.revert()
    model(X, EDGES)
    assert type(model.first) is pyg.HeteroConv
    assert not any(each._forward_hooks for each in model.modules())


def test_a_relation_without_edges_at_first_waits_on():
    layer = pyg.HeteroConv({each: pyg.SAGEConv((-1, -1), 2) for each in TYPES[1]}).double()
    report = accelerate(layer)
    layer(X, {TYPES[1][0]: EDGES[TYPES[1][0]]})
    assert type(layer) is pyg.HeteroConv
    assert "" in report.waiting
    expected = layer(X, EDGES)
    assert not report.waiting
    _close(layer(X, EDGES), expected)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_a_model_made_by_to_hetero_goes_back_to_its_types(aggr):
    model = pyg.to_hetero(Net(), TYPES, aggr=aggr).double()
    expected = model(X, EDGES)
    kinds, attributes = _kinds(model), _attributes(model)
    report = accelerate(model)
    assert len(report.swapped) == 8  # six layers, and the two with a layer per relation
    _close(model(X, EDGES), expected)
    report.revert()
    assert _kinds(model) == kinds
    assert _attributes(model) == attributes
    _close(model(X, EDGES), expected)


def test_what_is_not_known_stays_among_those_that_are():
    layer = pyg.HeteroConv(
        {
            TYPES[1][0]: pyg.SAGEConv((3, 6), 2),
            TYPES[1][1]: pyg.LEConv((6, 3), 2),
            TYPES[1][2]: pyg.SAGEConv((3, 3), 2, aggr="std"),
        }
    ).double()
    expected = layer(X, EDGES)
    report = accelerate(layer)
    assert {name.split("___")[1]: why for name, why in report.left.items()} == {
        "y": "shorthaul has no such layer",
        "z": "its options are not those of ours: aggr is 'std'.\n"
        "  It is one of mean, add, sum, max, min.",
    }
    _close(layer(X, EDGES), expected)
    assert [len(each) for each in layer.programs.last] == [1]


def _print(report):
    import rich.console

    console = rich.console.Console(width=200)
    with console.capture() as captured:
        console.print(report.table())
    return captured.get()
