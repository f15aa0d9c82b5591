"""A layer per relation against PyG's `HeteroConv`: drawn types, layers and ways to aggregate."""

import copy
import pickle
import re

import pytest
import torch

from shorthaul.relational import (
    GATConv,
    GCNConv,
    GINConv,
    GraphConv,
    HeteroConv,
    SAGEConv,
    accelerate,
)
from tests.relational.layers import comparing

pytest.importorskip("torch_geometric.nn")

import torch_geometric.nn as pyg

from tests.relational.layers.drawn_layers import Draw

# PyG warns of types that nothing leads to.
pytestmark = pytest.mark.filterwarnings("ignore")

AGGREGATIONS = ("sum", "sum", "sum", "mean", "mean", "max", "min", "cat", None)
KINDS = (
    "sage",
    "sage max",
    "sage several",
    "gat",
    "gatv2",
    "graph",
    "transformer",
    "gin",
    "gcn",
    "left",
)


def _draw_conv(draw, kind, widths, same):
    """One relation's layer, and the name under which its edges' values are passed, if it has any."""
    out = 4
    if kind.startswith("sage"):
        aggr = {"sage max": "max", "sage several": ["max", "mean"]}.get(kind)
        aggr = aggr or draw.pick("mean", "add")
        options = draw.options(root_weight=(False,), bias=(False,), normalize=(True,))
        return pyg.SAGEConv(widths, out, aggr=aggr, **options), ""
    if kind == "graph":
        return pyg.GraphConv(widths, out, bias=draw.pick(True, False)), draw.pick("", "edge_weight")
    if kind == "gin":
        options = draw.options(eps=(0.5,), train_eps=(True,), aggr=("add", "max"))
        return pyg.GINConv(_draw_network(draw, widths[0], out), **options), ""
    if kind == "gcn":
        options = draw.options(
            improved=(True,), add_self_loops=(False,), normalize=(False,), bias=(False,),
            aggr=("add", "mean", "max"),
        )  # fmt: skip
        if not options.get("normalize", True):
            options.pop("add_self_loops", None)
        return pyg.GCNConv(widths[0], out, **options), draw.pick("", "edge_weight")
    if kind == "left":
        return pyg.LEConv(widths, out), ""
    edge_dim = draw.pick(None, 2)
    options = {"heads": 2, "edge_dim": edge_dim, "concat": draw.pick(True, False)}
    options["bias"] = draw.pick(True, False)
    width = out // 2 if options["concat"] else out
    named = "" if edge_dim is None else "edge_attr"
    if kind == "transformer":
        options |= {"beta": draw.pick(True, False), "root_weight": draw.pick(True, False)}
        return pyg.TransformerConv(widths, width, **options), named
    options["residual"] = draw.pick(True, False)
    options["add_self_loops"] = same and draw.pick(True, False)
    layer = pyg.GATConv if kind == "gat" else pyg.GATv2Conv
    return layer(widths, width, **options), named


def _draw_network(draw, width, out):
    """GIN's: maps and activations, and sometimes what the language has not."""
    first, last = torch.nn.Linear(width, 5, bias=draw.pick(True, False)), torch.nn.Linear(5, out)
    middle = draw.pick(
        torch.nn.ReLU(), torch.nn.LeakyReLU(0.1), torch.nn.Sequential(torch.nn.GELU()),
        torch.nn.Tanh(), torch.nn.ELU(), torch.nn.ELU(0.5), torch.nn.LayerNorm(5),
    )  # fmt: skip
    made = torch.nn.Sequential(first, middle, torch.nn.Dropout(0.5), last)
    return draw.pick(made, made, torch.nn.Linear(width, out)).eval()


def _draw(number):
    """PyG's layer, its call, and the features, all drawn; relations repeat kinds and widths."""
    draw = Draw(f"hetero {number}")
    names = "abc"[: draw.randint(1, 3)]
    is_uniform, is_alike = draw.random() < 0.6, draw.random() < 0.7
    widths = {name: 3 if is_uniform else draw.pick(2, 3) for name in names}
    counts = {name: draw.randint(1, 9) for name in names}
    kinds = [draw.pick(*KINDS) for _ in range(draw.pick(1, 1, 2))]
    convs, edges, values = {}, {}, {"edge_attr": {}, "edge_weight": {}}
    floats = {name: draw.tensor(counts[name], widths[name]) for name in names}
    for relation in range(draw.randint(2, 8)):
        source, target = draw.pick(*names), draw.pick(*names)
        kind, same = draw.choice(kinds), source == target
        if kind == "gcn" and not same:
            kind = "sage"
        if kind == "gin" and widths[source] != widths[target]:
            kind = "sage"
        types = source, f"r{relation}", target
        options = Draw(f"options {number} {kind}") if is_alike else draw
        convs[types], named = _draw_conv(options, kind, (widths[source], widths[target]), same)
        if draw.random() < 0.9 or not edges:
            edges[types] = draw.edges(counts[source], counts[target])
            if named:
                shape = (
                    (edges[types].shape[1], 2) if named == "edge_attr" else edges[types].shape[1:]
                )
                values[named][types] = f"{named} {relation}"
                floats[f"{named} {relation}"] = draw.tensor(*shape)
                if kind == "gcn":  # which takes roots of sums of weights
                    floats[f"{named} {relation}"].abs_()
    layer = pyg.HeteroConv(convs, aggr=draw.choice(AGGREGATIONS)).double()
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.randn(each.shape, generator=generator) * 0.7)

    def call(module, x):
        named = {
            f"{name}_dict": {types: x[each] for types, each in given.items()}
            for name, given in values.items()
            if given
        }
        return module({name: x[name] for name in names}, edges, **named)

    return layer, call, floats


def _use_reference(module):
    for each in module.modules():
        comparing.use_backend(each, "reference")
        for weighted in (False, True) if hasattr(each, "message_function") else ():
            function = each.message_function(is_weighted=weighted)
            if not isinstance(function, str):
                function.backend = "reference"


def _check(number, backend):
    theirs, call, floats = _draw(number)
    ours = copy.deepcopy(theirs)
    report = accelerate(ours)
    assert all("LEConv" in type(ours.get_submodule(name)).__name__ for name in report.left)
    assert type(ours) is HeteroConv
    if backend == "reference":
        _use_reference(ours)
    expected = comparing.run_layer(theirs, call, floats, torch.float64)
    got = comparing.run_layer(ours, call, floats, torch.float64)
    assert list(got) == list(expected)
    comparing.assert_close(got, expected, comparing.allow_double(expected), f"{number}: {theirs}")
    return ours


def test_same_as_pyg_in_float64():
    layers = [_check(number, "reference") for number in range(50)]
    groups = [each.programs.last for each in layers]
    # Several relations in one program, and several programs.
    assert sum(max(map(len, each), default=0) > 1 for each in groups) > 20
    assert sum(len(each) > 1 for each in groups) > 5
    reasons = {why for each in layers for why in each.programs.alone.values()}
    assert any("LEConv" in why for why in reasons)


def test_kernels_compute_the_same():
    for number in (0, 1):
        _check(number, "auto")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_more_of_the_same():
    for number in range(50, 400):
        _check(number, "reference")
    for number in range(400, 430):
        _check(number, "auto")


TYPES = (("a", "x", "b"), ("b", "y", "b"), ("b", "z", "a"))
X = {"a": torch.randn(3, 4), "b": torch.randn(5, 4)}
EDGES = {each: torch.tensor([[0, 1, 2], [0, 0, 2]]) for each in TYPES}


def _make(make=lambda: SAGEConv((4, 4), 2), aggr="sum"):
    return HeteroConv({each: make() for each in TYPES}, aggr)


def test_layers_that_are_alike_are_one_program():
    layer = _make()
    layer(X, EDGES)
    assert list(layer.programs.last) == [TYPES]
    text = layer.explain(stage="as written")
    assert "one program for a__x__b, b__y__b, b__z__a" in text
    assert "neighbors = input {kind=weight}" in text
    assert "over relation" in text
    kernels = layer.explain(stage="kernels")
    assert kernels.count("product") == 1  # of all relations


def test_copies_and_pickles_compute_the_same():
    layer = _make()
    expected = layer(X, EDGES)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        found = other(X, EDGES)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_hook_on_a_relation_is_called():
    layer, seen = _make(), []
    expected = layer(X, EDGES)
    next(layer.convs.children()).register_forward_hook(lambda *_: seen.append(1))
    found = layer(X, EDGES)
    assert seen == [1]
    assert [len(each) for each in layer.programs.last] == [2]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


class _Doubled(SAGEConv):
    """A user's layer that does more than ours in its forward pass."""

    def forward(self, x, edge_index, size=None):
        return 2 * super().forward(x, edge_index, size)


class _Named(SAGEConv):
    """A user's layer that computes as ours does."""


def test_a_forward_of_the_users_is_called():
    doubled, plain = _make(lambda: _Doubled((4, 4), 2)), _make()
    doubled.load_state_dict(plain.state_dict())
    expected = plain(X, EDGES)
    found = doubled(X, EDGES)
    assert not doubled.programs.last
    for name, value in expected.items():
        torch.testing.assert_close(found[name], 2 * value)
    conv = next(plain.convs.children())
    forward = conv.forward
    conv.forward = lambda *arguments: 0 * forward(*arguments)
    found = plain(X, EDGES)
    assert [len(each) for each in plain.programs.last] == [2]
    assert not torch.equal(found["b"], expected["b"])
    del conv.forward
    assert torch.equal(plain(X, EDGES)["b"], expected["b"])


def test_a_subclass_without_a_forward_of_its_own_is_computed_with_the_others():
    layer = _make(lambda: _Named((4, 4), 2))
    layer(X, EDGES)
    assert list(layer.programs.last) == [TYPES]


def test_inside_torch_compile():
    layer = _make(lambda: GATConv((4, 4), 2, add_self_loops=False)).double()
    x = {name: value.double() for name, value in X.items()}
    expected = layer(x, EDGES)
    found = torch.compile(layer, backend="eager")(x, EDGES)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("kind", ["sage", "gin", "gcn"])
def test_inside_a_transform_of_torch_func(kind):
    theirs, ours = _make_gcn() if kind == "gcn" else _make_pair(kind)
    x = {name: value.double() for name, value in X.items()}
    edges = dict.fromkeys(ours.edge_types, EDGES[TYPES[1]])
    ours(x, edges)  # kernels index edges, which they cannot inside

    def loss(parameters, layer):
        made = torch.func.functional_call(layer, parameters, (x, edges))
        return sum(value.square().sum() for value in made.values())

    parameters = dict(ours.named_parameters())
    expected, found = (torch.func.grad(loss)(parameters, each) for each in (theirs, ours))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))  # with what was kept of it


def test_torch_compile_that_gives_up():
    """Beyond its limit a frame runs as it is, but what it calls is compiled on."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for kind in ("gin", "gin"):
            theirs, ours = _make_pair(kind)
            compiled = torch.compile(ours, backend="eager")
            for more in range(3):
                x = {name: torch.randn(len(value) + more, 4).double() for name, value in X.items()}
                expected, found = theirs(x, EDGES), compiled(x, EDGES)
                for name, value in expected.items():
                    torch.testing.assert_close(found[name], value)


def test_training_drops_attention_of_all_relations_in_one_program():
    layer = _make(lambda: GATConv((4, 4), 2, add_self_loops=False, dropout=0.9))
    quiet = layer.eval()(X, EDGES)["b"]
    torch.manual_seed(1)
    assert not torch.equal(layer.train()(X, EDGES)["b"], quiet)


ATTENTION = {"heads": 2, "add_self_loops": False}
PER_RELATION = {
    "sage": lambda: pyg.SAGEConv((4, 4), 2),
    "sage max": lambda: pyg.SAGEConv((4, 4), 2, aggr="max"),
    "graph": lambda: pyg.GraphConv((4, 4), 2),
    "gat": lambda: pyg.GATConv((4, 4), 2, residual=True, **ATTENTION),
    "gatv2": lambda: pyg.GATv2Conv((4, 4), 2, **ATTENTION),
    "transformer": lambda: pyg.TransformerConv((4, 4), 2, heads=2),
    "gin": lambda: pyg.GINConv(_network(), eps=0.5, train_eps=True),
}


def _make_pair(kind):
    theirs = pyg.HeteroConv({each: PER_RELATION[kind]() for each in TYPES}).double()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    return theirs, ours


def _network():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "cat", None])
@pytest.mark.parametrize("kind", PER_RELATION)
def test_features_that_differ_by_relation(kind, aggr):
    theirs = pyg.HeteroConv({each: PER_RELATION[kind]() for each in TYPES}, aggr).double()
    # Two relations read other rows of `b`, and more of them, than `b` itself has.
    x = {name: value.double() for name, value in X.items()}
    x[TYPES[0]] = (torch.randn(6, 4).double(), torch.randn(5, 4).double())
    x[TYPES[1]] = (torch.randn(7, 4).double(), torch.randn(5, 4).double())
    expected = theirs(x, EDGES)
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    found = ours(x, EDGES)
    assert list(ours.programs.last) == [TYPES]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_one_layer_of_several_relations():
    shared = pyg.SAGEConv((4, 4), 2)
    theirs = pyg.HeteroConv(dict.fromkeys(TYPES, shared))
    expected = theirs(X, EDGES)
    accelerate(theirs)
    found = theirs(X, EDGES)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    layer = _make()
    shared = next(layer.convs.children())
    HeteroConv(dict.fromkeys(TYPES, shared)).reset_parameters()


@pytest.mark.parametrize("kind", ["sage", "graph", "transformer", "gin"])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_autocast_makes_what_pyg_makes(kind, aggr):
    theirs = pyg.HeteroConv({each: PER_RELATION[kind]() for each in TYPES}, aggr)
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = theirs(X, EDGES), ours(X, EDGES)
    assert {name: value.dtype for name, value in expected.items()} == dict.fromkeys(
        found, torch.bfloat16
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: HeteroConv({}, "median"), "one of 'sum', 'mean'"),
        (lambda: _make()(X, {**EDGES, TYPES[0]: EDGES[TYPES[0]] + 5}), "source"),
        (lambda: _make()(X, EDGES, edge_attr={}), "end with _dict"),
        (
            lambda: _make(lambda: GATConv((4, 4), 2, edge_dim=1, add_self_loops=False))(
                X, EDGES, edge_attr_dict={each: torch.ones(2, 1) for each in TYPES}
            ),
            "has 2 rows, but there are 3 edges",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


LOOPS = (("b", "y", "b"), ("b", "z", "b"), ("b", "w", "b"))


def _make_gcn(**options):
    theirs = pyg.HeteroConv({each: pyg.GCNConv(4, 2, **options) for each in LOOPS}).double()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    return theirs, ours


def test_gcn_of_all_relations_is_one_program():
    theirs, ours = _make_gcn()
    x = {"b": torch.randn(5, 4).double()}
    edges = {LOOPS[0]: EDGES[TYPES[1]], LOOPS[1]: torch.empty(2, 0, dtype=torch.long)}
    edges[LOOPS[2]] = torch.tensor([[4], [4]])  # one edge, which is a loop
    with torch.inference_mode():  # what is kept of it serves the calls that train
        ours(x, edges)
    assert list(ours.programs.last) == [LOOPS]
    assert not ours.programs.alone
    for _ in range(2):
        torch.testing.assert_close(ours(x, edges)["b"], theirs(x, edges)["b"])
        gradients = [
            torch.autograd.grad(each(x, edges)["b"].square().sum(), list(each.parameters()))
            for each in (ours, theirs)
        ]
        torch.testing.assert_close(*gradients)
        edges[LOOPS[0]][0, 0] = 3  # degrees follow edges that were written to


def test_degrees_of_a_hub_are_counted_in_full_precision():
    theirs, ours = _make_gcn(add_self_loops=False)
    count = 3000
    edges = torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.long)])
    edges = torch.cat([edges, edges.flip(0)], 1)
    edges = dict.fromkeys(LOOPS, edges)
    x = torch.randn(count, 4)
    expected = theirs({"b": x.double()}, edges)["b"]
    found = ours.bfloat16()({"b": x.bfloat16()}, edges)["b"]
    # PyG's own sum of ones stops at 256 here.
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.02)


def test_gcn_of_two_types_is_refused_as_by_pyg():
    layer = HeteroConv({each: GCNConv(4, 2) for each in TYPES})
    with pytest.raises(ValueError, match="takes one set of nodes"):
        layer(X, EDGES)


def test_gin_with_its_network_is_one_program():
    layer = _make(lambda: GINConv(_network()))
    layer(X, EDGES)
    assert list(layer.programs.last) == [TYPES]
    text = layer.explain(stage="as written")
    for name in ("eps", "map_1", "bias_1", "map_2", "bias_2"):
        assert re.search(rf"^ *{name} += input {{kind=weight}} .*over relation$", text, re.M)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)),
            "BatchNorm1d",
        ),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)), "Dropout"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.GELU("tanh")), "GELU"),
        (lambda: torch.nn.Sequential(torch.nn.ReLU()), "no linear map"),
        (lambda: pyg.MLP([4, 2]), "MLP"),
        (lambda: torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(4, 2)), "Parametrized"),
    ],
)
def test_networks_that_the_language_has_not_are_called(make, said):
    theirs = pyg.HeteroConv({each: pyg.GINConv(make()) for each in TYPES}).double()
    ours = copy.deepcopy(theirs)
    accelerate(ours)
    x = {name: value.double() for name, value in X.items()}
    torch.manual_seed(2)
    expected = theirs(x, EDGES)
    torch.manual_seed(2)
    found = ours(x, EDGES)
    assert all(said in why for why in ours.programs.alone.values())
    assert not ours.programs.last
    assert said in ours.explain()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_hook_within_a_network_is_called():
    layer, seen = _make(lambda: GINConv(_network())), []
    expected = layer(X, EDGES)
    network = next(layer.convs.children()).nn
    network[0].register_forward_hook(lambda *_: seen.append(1))
    found = layer(X, EDGES)
    assert seen == [1]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_dropout_within_a_network_follows_its_training_flag():
    layer = _make(lambda: GINConv(torch.nn.Sequential(_network(), torch.nn.Dropout(0.5))))
    layer(X, EDGES)
    assert not layer.programs.last
    layer.eval()(X, EDGES)
    assert list(layer.programs.last) == [TYPES]


def test_results_that_cannot_be_added_up_are_refused():
    layer = _make(lambda: GATConv((4, 4), 2, add_self_loops=False))
    to_a = {TYPES[2]: EDGES[TYPES[2]]}
    asked = {"return_attention_weights_dict": {TYPES[2]: True}}
    out, (edges, shares) = layer(X, to_a, **asked)["a"]  # of one relation, as PyG has it
    assert out.shape == (3, 2)
    assert shares.shape == (edges.shape[1], 1)
    twice = HeteroConv(
        {("a", name, "b"): GATConv((4, 4), 2, add_self_loops=False) for name in "xy"}
    )
    edges = dict.fromkeys(twice.edge_types, EDGES[TYPES[0]])
    with pytest.raises(ValueError, match="they are tuple"):
        twice(X, edges, return_attention_weights_dict=dict.fromkeys(edges, True))
    wide = HeteroConv({("a", f"r{out}", "b"): SAGEConv((4, 4), out) for out in (1, 2)})
    with pytest.raises(ValueError, match=r"a__r1__b, a__r2__b are added up.*\(5, 1\)"):
        wide(X, dict.fromkeys(wide.edge_types, EDGES[TYPES[0]]))


def test_values_of_edges_that_are_none_are_none():
    layer = _make(lambda: GraphConv((4, 4), 2))
    expected = layer(X, EDGES)
    found = layer(X, EDGES, edge_weight_dict=dict.fromkeys(EDGES))
    assert list(layer.programs.last) == [TYPES]
    assert torch.equal(found["b"], expected["b"])


def test_a_way_to_aggregate_that_is_set_later_is_followed_or_refused():
    layer = _make()
    layer.aggr = "cat"
    assert layer(X, EDGES)["b"].shape == (5, 4)
    layer.aggr = "prod"
    with pytest.raises(ValueError, match="joined by aggr='prod'"):
        layer(X, EDGES)
