"""Models made by `to_hetero`: the relations of a layer in one program, against PyG's, and all undone."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from shorthaul.explain import explain
from shorthaul.relational import accelerate
from shorthaul.relational.layers.heterogeneous.to_hetero import RelationConvs
from tests.relational.layers import comparing

pytest.importorskip("torch_geometric.nn")

import torch_geometric.nn as pyg

from tests.relational.layers.drawn_layers import Draw

pytestmark = pytest.mark.filterwarnings("ignore")

METADATA = (["a", "b"], [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a"), ("b", "w", "a")])
X = {"a": torch.randn(5, 3).double(), "b": torch.randn(4, 6).double()}
EDGES = {
    each: torch.randint(4, (2, 9), generator=torch.Generator().manual_seed(number))
    for number, each in enumerate(METADATA[1])
}


class Net(nn.Module):
    """Two layers, of any kind, with a map and an activation in between."""

    def __init__(self, first, last, width=8):
        super().__init__()
        self.first, self.middle = first, nn.Linear(width, width)
        self.convs = nn.ModuleList([last])

    def forward(self, x, edge_index):
        x = self.middle(self.first(x, edge_index).relu())
        return self.convs[0](x, edge_index)


class Valued(Net):
    """The same with values of edges."""

    def forward(self, x, edge_index, edge_value):
        x = self.middle(self.first(x, edge_index, edge_value).relu())
        return self.convs[0](x, edge_index, edge_value)


def _sage(width=(-1, -1), out=8):
    return pyg.SAGEConv(width, out)


def _make(first=None, last=None, aggr="sum", metadata=METADATA):
    model = pyg.to_hetero(Net(first or _sage(), last or _sage(out=4)), metadata, aggr=aggr).double()
    model(X, EDGES)  # PyG finds the widths
    return model


def _state(model):
    """What `revert` restores: types, names of attributes, graphs and their code."""
    modules = dict(model.named_modules())
    graphs = {
        name: (each.graph, each.code)
        for name, each in modules.items()
        if isinstance(each, torch.fx.GraphModule)
    }
    return (
        {name: (type(each), set(vars(each))) for name, each in modules.items()},
        graphs,
        list(model.state_dict()),
    )


def _close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def _joined(model):
    return {
        name: list(each.programs.last)
        for name, each in model.named_modules()
        if isinstance(each, RelationConvs)
    }


def test_a_layer_of_all_relations_is_one_program():
    model = _make()
    expected, before = model(X, EDGES), _state(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = accelerate(model)
    assert not report.left
    joined = [each for each in report.swapped if each.was == "layers of to_hetero"]
    assert [(each.name, each.now) for each in joined] == [
        ("first", "sh.relational.RelationConvs"),
        ("convs.0", "sh.relational.RelationConvs"),
    ]
    assert "torch.add" not in model.code
    _close(model(X, EDGES), expected)
    # Types are not those of one width, so two of the first layer's programs have a relation each.
    assert _joined(model)["convs.0"] == [tuple(METADATA[1])]
    assert list(model.state_dict()) == before[2]
    held = {id(each) for each in optimizer.param_groups[0]["params"]}
    assert held == {id(each) for each in model.parameters()}
    report.revert()
    assert _state(model) == before
    assert type(model.first) is nn.ModuleDict
    _close(model(X, EDGES), expected)
    report.revert()
    assert _state(model) == before


def test_the_one_program_is_explained():
    model = _make()
    accelerate(model)
    assert "not called yet" in explain(model.convs[0])
    model(X, EDGES)
    text = explain(model.convs[0])
    assert text.count("== one program for") == 1
    assert "== one program for a__x__b, b__y__a, a__z__a, b__w__a ==" in text
    assert "over relation" in text
    whole = explain(model)
    assert "=== first (RelationConvs) ===" in whole
    assert text in whole


KINDS = {
    "sage": lambda draw: pyg.SAGEConv(
        (-1, -1), 6, aggr=draw.pick("mean", "max"), normalize=draw.pick(False, False, True)
    ),
    "gat": lambda draw: pyg.GATConv(
        (-1, -1), 3, heads=2, add_self_loops=False, residual=draw.pick(False, True)
    ),
    "gatv2": lambda draw: pyg.GATv2Conv((-1, -1), 6, add_self_loops=False),
    "graph": lambda draw: pyg.GraphConv((-1, -1), 6, aggr=draw.pick("add", "mean", "min")),
    "transformer": lambda draw: pyg.TransformerConv((-1, -1), 6, beta=draw.pick(False, True)),
    "gin": lambda draw: pyg.GINConv(
        nn.Sequential(pyg.Linear(6, 4), nn.ReLU(), pyg.Linear(4, 6)), train_eps=True
    ),
    "left": lambda draw: pyg.LEConv((6, 6), 6),
}
VALUED = {
    "graph": lambda draw: pyg.GraphConv((-1, -1), 6),
    "gat": lambda draw: pyg.GATConv((-1, -1), 6, add_self_loops=False, edge_dim=1),
}
FIRST = ("sage", "gat", "gatv2", "graph", "transformer")


def _draw(number):
    draw = Draw(f"to hetero {number}")
    names = "abc"[: draw.randint(1, 3)]
    relations = [("c" if "c" in names else "a", "first", "a")]  # all types are reached
    relations += [(draw.pick(*names), f"in {name}", name) for name in names]
    relations += [
        (draw.pick(*names), f"r-{number}", draw.pick(*names))
        for number in range(draw.randint(0, 4))
    ]
    draw.shuffle(relations)
    counts = {name: draw.randint(1, 9) for name in names}
    widths = {name: draw.pick(2, 3) for name in names}
    is_valued = draw.random() < 0.3
    table = VALUED if is_valued else KINDS
    first = table[draw.pick(*(VALUED if is_valued else FIRST))](draw)
    last = table[draw.pick(*table)](draw)
    aggr = draw.pick("sum", "sum", "mean", "max", "min", "mul")
    net = (Valued if is_valued else Net)(first, last, 6)
    model = pyg.to_hetero(net, (list(names), relations), aggr=aggr).double()
    edges = {each: draw.edges(counts[each[0]], counts[each[2]]) for each in relations}
    floats = {name: draw.tensor(counts[name], widths[name]) for name in names}
    if is_valued:
        floats |= {str(each): draw.tensor(edges[each].shape[1]) for each in relations}

    def call(module, x):
        values = ({each: x[str(each)] for each in relations},) if is_valued else ()
        return module({name: x[name] for name in names}, edges, *values)

    with torch.no_grad():
        call(model, floats)
        for each in model.parameters():
            each.copy_(draw.tensor(*each.shape) * 0.7)
    return model, call, floats


def _check(number, backend):
    theirs, call, floats = _draw(number)
    ours = copy.deepcopy(theirs)
    before = _state(ours)
    report = accelerate(ours)
    for module in ours.modules():
        comparing.use_backend(module, backend)
        for weighted in (False, True) if hasattr(module, "message_function") else ():
            function = module.message_function(is_weighted=weighted)
            if not isinstance(function, str):
                function.backend = backend
    expected = comparing.run_layer(theirs, call, floats, torch.float64)
    got = comparing.run_layer(ours, call, floats, torch.float64)
    case = f"{number}: {theirs.code}"
    comparing.assert_close(got, expected, comparing.allow_double(expected), case)
    programs = _joined(ours)
    report.revert()
    assert _state(ours) == before, case
    return programs


def test_same_as_pyg_in_float64():
    found = [_check(number, "reference") for number in range(8)]
    several = [one for each in found for groups in each.values() for one in groups if len(one) > 1]
    assert len(several) > 6


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_more_of_the_same():
    for number in range(8, 250):
        _check(number, "reference")
    for number in range(250, 265):
        _check(number, "auto")


@pytest.mark.parametrize("aggr", ["max", "min", "mul"])
def test_what_is_not_added_up_stays_in_the_graph(aggr):
    model = _make(aggr=aggr)
    expected = model(X, EDGES)
    accelerate(model)
    assert f"torch.{aggr}(" in model.code
    _close(model(X, EDGES), expected)
    assert _joined(model)["convs.0"] == [tuple(METADATA[1])]


def test_layers_that_find_their_widths_are_joined_after_the_first_call():
    model = pyg.to_hetero(Net(_sage(), _sage(out=4)), METADATA).double()
    before = _state(model)
    report = accelerate(model)
    assert {"first", "convs.0"} < set(report.waiting)
    report.revert()
    assert _state(model) == before
    assert not any(each._forward_hooks for each in model.modules())
    report = accelerate(model)
    expected = model(X, EDGES)
    assert not report.waiting
    assert not report.left
    _close(model(X, EDGES), expected)
    assert _joined(model)["convs.0"] == [tuple(METADATA[1])]
    report.revert()
    types, graphs, _ = _state(model)
    assert {name: kind for name, (kind, _) in types.items()} == {
        name: kind for name, (kind, _) in before[0].items()
    }
    assert graphs == before[1]
    assert {type(each).__module__.partition(".")[0] for each in model.first.children()} == {
        "torch_geometric"
    }
    _close(model(X, EDGES), expected)


class Twice(nn.Module):
    """One layer that is called two times."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv((6, 6), 6)

    def forward(self, x, edge_index):
        return self.conv(self.conv(x, edge_index).relu(), edge_index)


def test_a_layer_that_is_called_twice():
    model = pyg.to_hetero(Twice(), METADATA, aggr="mean").double()
    x = {name: torch.randn(5, 6).double() for name in "ab"}
    expected = model(x, EDGES)
    report = accelerate(model)
    assert [each.name for each in report.swapped].count("conv") == 1
    assert "torch.div" not in model.code
    _close(model(x, EDGES), expected)


def test_a_result_that_is_read_twice_stays_apart():
    model = _make()
    add = next(each for each in model.graph.nodes if each.target is torch.add)
    with model.graph.inserting_after(add):
        more = model.graph.call_function(torch.sub, (add, add.args[0]))
    add.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
    model.recompile()
    expected = model(X, EDGES)
    report = accelerate(model)
    assert not report.left
    assert "torch.sub" in model.code
    _close(model(X, EDGES), expected)
    assert sum(map(len, _joined(model).values())) > 0


def test_graphs_that_are_not_understood_are_left_with_a_reason():
    model = _make()
    calls = [each for each in model.graph.nodes if str(each.target).startswith("first.")]
    with model.graph.inserting_after(calls[0]):
        halved = model.graph.call_method("mul_", (calls[0], 0.5))
    calls[0].replace_all_uses_with(halved, delete_user_cb=lambda user: user is not halved)
    model.recompile()
    expected, before = model(X, EDGES), _state(model)
    report = accelerate(model)
    assert report.left == {"first": "`mul_` stands between the calls of its relations"}
    assert type(model.first) is nn.ModuleDict
    assert type(model.convs[0]) is RelationConvs
    _close(model(X, EDGES), expected)
    report.revert()
    assert _state(model) == before


def test_layers_that_are_not_ours_are_not_joined():
    model = pyg.to_hetero(Net(_sage(), pyg.LEConv((8, 8), 2)), METADATA).double()
    model(X, EDGES)
    report = accelerate(model)
    assert report.left["convs.0"] == "none of its layers is ours"
    assert report.left["convs.0.a__x__b"] == "shorthaul has no such layer"
    assert {name.partition(".")[0] for name in report.left} == {"convs"}


def test_edges_that_the_model_changes():
    class Dropping(Net):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index.flip(1))

    model = pyg.to_hetero(Dropping(_sage(), _sage(out=4)), METADATA).double()
    model(X, EDGES)
    expected = model(X, EDGES)
    report = accelerate(model)
    assert not report.left
    _close(model(X, EDGES), expected)
    assert _joined(model)["convs.0"] == [tuple(METADATA[1])]


def test_a_graph_that_is_changed_after_it_keeps_the_change():
    model = _make()
    expected = model(X, EDGES)
    report = accelerate(model)
    output = next(each for each in model.graph.nodes if each.op == "output")
    with model.graph.inserting_before(output):
        doubled = model.graph.call_function(torch.mul, (output.args[0]["a"], 2))
    output.args = ({**output.args[0], "a": doubled},)
    model.recompile()
    doubled = {**expected, "a": expected["a"] * 2}
    _close(model(X, EDGES), doubled)
    report.revert()
    _close(model(X, EDGES), doubled)
    assert all(type(each) is pyg.SAGEConv for each in model.first.children())


def test_a_hook_on_one_layer_is_called():
    model, seen = _make(), []
    expected = model(X, EDGES)
    accelerate(model)
    model.convs[0]["a__z__a"].register_forward_hook(lambda *_: seen.append(1))
    _close(model(X, EDGES), expected)
    assert seen == [1]
    assert _joined(model)["convs.0"] == [tuple(e for e in METADATA[1] if e[1] != "z")]
    assert "a__z__a: its layer has hooks" in explain(model.convs[0])


def test_a_part_of_another_model():
    model = nn.ModuleDict({"encoder": _make(), "head": nn.Linear(4, 1).double()})
    expected, before = model["encoder"](X, EDGES), _state(model)
    report = accelerate(model)
    assert "encoder.convs.0" in [each.name for each in report.swapped]
    _close(model["encoder"](X, EDGES), expected)
    report.revert()
    assert _state(model) == before


def test_copies_pickles_and_compiled_models_compute_the_same():
    model = _make(last=pyg.GINConv(nn.Linear(8, 4)))
    accelerate(model)
    expected = model(X, EDGES)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    others = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ]
    for other in others:
        assert type(other.first) is RelationConvs
        _close(other(X, EDGES), expected)
        assert len(_joined(other)["convs.0"]) == 1
    _close(torch.compile(model, backend="eager")(X, EDGES), expected)


def test_another_dtype_and_autocast():
    model = _make()
    theirs = copy.deepcopy(model)
    accelerate(model)
    x = {name: value.float() for name, value in X.items()}
    _close(model.float()(x, EDGES), theirs.float()(x, EDGES))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = model(x, EDGES), theirs(x, EDGES)
    for name, value in expected.items():
        assert found[name].dtype is value.dtype is torch.bfloat16
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05)
