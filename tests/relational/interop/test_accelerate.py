"""Layers of PyG and DGL in a model run compiled, with their own parameters, and come back."""

import copy
import io

import pytest
import torch
from rich.console import Console
from torch import nn

from shorthaul import relational
from shorthaul.relational import accelerate
from tests.relational import dgl_stand_ins
from tests.relational.layers.parity import EDGE_INDEX, EDGE_TYPE

pyg = pytest.importorskip("torch_geometric.nn")

GRAPH = dgl_stand_ins.PlainGraph(EDGE_INDEX, 40)
TYPES = (["a", "b"], [("a", "x", "b"), ("b", "y", "a")])
X = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))


def _typed_inputs():
    edges = {each: EDGE_INDEX[:, number == EDGE_TYPE] for number, each in enumerate(TYPES[1])}
    return {"a": X, "b": X.flip(0)}, edges


CASES = {
    "RGCNConv": (lambda: pyg.RGCNConv(16, 8, 5, num_bases=3), (X, EDGE_INDEX, EDGE_TYPE)),
    "FastRGCNConv": (lambda: pyg.FastRGCNConv(16, 8, 5), (X, EDGE_INDEX, EDGE_TYPE)),
    "RGCNConv by number": (lambda: pyg.RGCNConv(40, 8, 5), (None, EDGE_INDEX, EDGE_TYPE)),
    "RGATConv": (lambda: pyg.RGATConv(16, 8, 5, heads=2), (X, EDGE_INDEX, EDGE_TYPE)),
    "HGTConv": (lambda: pyg.HGTConv(16, 16, TYPES, heads=2), _typed_inputs()),
    "HANConv": (lambda: pyg.HANConv(16, 16, TYPES, heads=2), _typed_inputs()),
    "GATv2Conv": (lambda: pyg.GATv2Conv(16, 8, heads=2), (X, EDGE_INDEX)),
    "SAGEConv": (lambda: pyg.SAGEConv(16, 8, normalize=True), (X, EDGE_INDEX)),
    "SAGEConv, several": (lambda: pyg.SAGEConv(16, 8, aggr=["mean", "max"]), (X, EDGE_INDEX)),
    "SAGEConv apart": (
        lambda: pyg.SAGEConv((16, 16), 8, project=True),
        ((X, X[:12]), torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])),
    ),
    "RelGraphConv": (
        lambda: dgl_stand_ins.RelGraphConv(16, 8, 5, "basis", 3, layer_norm=True),
        (GRAPH, X, EDGE_TYPE),
    ),
    "DGL's HGTConv": (
        lambda: dgl_stand_ins.HGTConv(16, 4, 2, 2, 5, dropout=0.0, use_norm=True),
        (GRAPH, X, EDGE_TYPE[:40] % 2, EDGE_TYPE),
    ),
}


def _use_reference(model):
    for module in model.modules():
        for name in ("function", "apart", "by_number"):
            if isinstance(getattr(module, name, None), type(relational.SAGEConv(1, 1).function)):
                getattr(module, name).backend = "reference"


def _run(module, inputs):
    out = module(*inputs)
    out = torch.cat([*out.values()]) if isinstance(out, dict) else out
    loss = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()
    grads = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return out.detach(), [torch.zeros(()) if each is None else each for each in grads]


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_from_the_same_parameters(name):
    make, inputs = CASES[name]
    torch.manual_seed(1)
    module = make().eval()
    before, grads = _run(module, inputs)
    kind, attributes, state = type(module), dict(vars(module)), list(module.state_dict())
    parameters = list(module.parameters())
    report = accelerate(module)
    assert not report.left
    assert [each.name for each in report.swapped] == [""]
    _use_reference(module)
    after, swapped_grads = _run(module, inputs)
    assert type(module).__module__.startswith("shorthaul.relational")
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    for one, other in zip(swapped_grads, grads, strict=True):
        torch.testing.assert_close(one, other.expand_as(one), rtol=1e-4, atol=1e-4)
    assert all(one is other for one, other in zip(module.parameters(), parameters, strict=True))
    assert list(module.state_dict()) == state
    assert not module.training
    report.revert()
    assert type(module) is kind
    assert vars(module) == attributes
    assert torch.equal(_run(module, inputs)[0], before)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = pyg.RGCNConv(16, 8, 5)
        self.second = pyg.RGCNConv(8, 4, 5, num_bases=2)
        self.other = pyg.LEConv(8, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x, edge_index, edge_type):
        x = self.first(x, edge_index, edge_type).relu()
        x = self.second(x, edge_index, edge_type) + self.other(x, edge_index)
        return self.head(x)


def test_a_model_trains_on_with_its_optimizer_and_hooks():
    torch.manual_seed(0)
    plain, seen = Model(), []
    swapped = copy.deepcopy(plain)
    swapped.first.register_forward_hook(lambda *_: seen.append(1))
    optimizers = [torch.optim.Adam(each.parameters(), 0.05) for each in (plain, swapped)]
    report = accelerate(swapped)
    _use_reference(swapped)
    assert [each.name for each in report.swapped] == ["first", "second"]
    assert report.left == {"other": "shorthaul has no such layer"}
    losses = []
    for model, optimizer in zip((plain, swapped), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(X, EDGE_INDEX, EDGE_TYPE).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[3:], losses[:3])
    assert losses[2] < losses[0]
    assert len(seen) == 3
    report.revert()
    torch.testing.assert_close(
        swapped(X, EDGE_INDEX, EDGE_TYPE), plain(X, EDGE_INDEX, EDGE_TYPE), rtol=1e-3, atol=1e-4
    )
    report.revert()
    assert type(swapped.first) is pyg.RGCNConv


def test_the_report_is_a_table():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(accelerate(Model()).table())
    text = console.export_text()
    for told in ("PyG RGCNConv", "sh.relational.RGCNConv", "PyG LEConv", "has no such layer"):
        assert told in text


class Special(pyg.RGCNConv):
    """Computes something else."""


def _hooked():
    layer = pyg.SAGEConv(4, 4)
    layer.register_message_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: pyg.SAGEConv(4, 4, aggr="median"), "aggr is 'median'"),
        (
            lambda: pyg.SAGEConv(4, 4, aggr=["mean", "max"], aggr_kwargs={"mode": "sum"}),
            "joins several aggregations by 'sum'; ours puts them side by side",
        ),
        (lambda: pyg.SAGEConv(4, 4, aggr=["mean", "median"]), "aggr is 'median'"),
        (lambda: pyg.GraphConv(4, 4, aggr=["mean", "max"]), "ours takes one name"),
        (lambda: pyg.RGCNConv(4, 4, 2, flow="target_to_source"), "flow is 'target_to_source'"),
        (lambda: pyg.RGCNConv((4, 6), 4, 2), "width 4 and targets 6"),
        (lambda: Special(4, 4, 2), "subclass of RGCNConv"),
        (_hooked, "hooks on `message`"),
        (lambda: pyg.GATv2Conv(4, 4, fill_value="best"), "fill_value is 'best'"),
        (lambda: pyg.RGATConv(4, 4, 2, aggr="max"), "aggr is 'max'; ours adds"),
        (lambda: pyg.FastRGCNConv(4, 4, 2, aggr="max"), "FastRGCNConv has no maximum"),
        (lambda: pyg.LEConv(4, 4), "no such layer"),
        (dgl_stand_ins.TAGConv, "no such layer"),
        (
            lambda: dgl_stand_ins.SAGEConv(4, 4, "gcn"),
            "its aggregator is 'gcn'; ours has mean and pool",
        ),
        (lambda: dgl_stand_ins.GraphConv(4, 4, weight=False), "it has no weight of its own"),
        (lambda: pyg.SAGEConv(4, 4).to("meta"), "is on meta"),
    ],
)
def test_what_ours_cannot_do_is_left_with_the_reason(layer, reason):
    module = layer()
    kind = type(module)
    report = accelerate(module)
    assert not report.swapped
    assert reason in report.left[""]
    assert type(module) is kind


def test_parameters_of_another_version_are_left():
    module = pyg.RGCNConv(4, 4, 2)
    module.extra = nn.Parameter(torch.zeros(3))
    assert accelerate(module).left == {"": "`extra` is (3,), in ours it is absent"}


def test_swapped_layers_are_not_swapped_again():
    model = Model()
    accelerate(model)
    report = accelerate(model)
    assert not report.swapped
    assert list(report.left) == ["other"]


def test_a_lazy_layer_after_its_first_call():
    module = pyg.SAGEConv((-1, -1), 8)
    pair, edges = (X, X[:12]), torch.stack([EDGE_INDEX[0], EDGE_INDEX[1] % 12])
    expected = module(pair, edges)
    assert accelerate(module).swapped
    _use_reference(module)
    torch.testing.assert_close(module(pair, edges), expected)


def test_compiled():
    torch.manual_seed(0)
    module = pyg.RGCNConv(16, 8, 5)
    expected = module(X, EDGE_INDEX, EDGE_TYPE)
    accelerate(module)
    torch.testing.assert_close(module(X, EDGE_INDEX, EDGE_TYPE), expected, rtol=1e-4, atol=1e-4)
    assert "generated source" in module.explain()


class Doubled(nn.Linear):
    """A linear map that is more than its weight."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("make", "inner"),
    [
        (lambda: pyg.SAGEConv(16, 8), "lin_l"),
        (lambda: pyg.GATv2Conv(16, 8), "lin_r"),
        (lambda: pyg.HGTConv(16, 16, TYPES), "kqv_lin.lins.a"),
        (lambda: dgl_stand_ins.RelGraphConv(16, 8, 5), "linear_r"),
    ],
)
def test_hooks_on_what_is_never_called_leave_a_layer(make, inner):
    layer = make()
    kind, hook = type(layer), layer.get_submodule(inner).register_forward_hook(lambda *_: None)
    assert accelerate(layer).left == {"": f"it has hooks on `{inner}`, which ours never calls"}
    assert type(layer) is kind
    hook.remove()
    assert not accelerate(layer).left


def test_a_map_of_the_users_own_leaves_a_layer():
    layer = pyg.SAGEConv(16, 8)
    layer.lin_l = Doubled(16, 8)
    assert accelerate(layer).left == {
        "": "`lin_l` is a Doubled, which ours never calls: it reads the weight"
    }


def test_hooks_on_what_is_called_do_not():
    seen = []
    layer = pyg.GINConv(nn.Sequential(nn.Linear(16, 8)))
    layer.nn[0].register_forward_hook(lambda *_: seen.append(1))
    assert not accelerate(layer).left
    layer(X, EDGE_INDEX)
    assert seen == [1]
