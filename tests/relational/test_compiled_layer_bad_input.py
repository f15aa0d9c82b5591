"""Bad input to layers and graphs: an error with names and numbers, never a crash; and numbers that are
not numbers go where PyTorch's would.
"""

import pytest
import torch

from shorthaul.errors import GraphError, LayerArgumentError, ShorthaulError
from shorthaul.relational import HGTConv, RelationalGraph, RGATConv, RGCNConv
from tests.relational.programs import SIZES, attend, convolve, sample_graph, widths_of

EDGES = torch.tensor([[0, 0, 1], [1, 2, 2]])
TYPES = torch.tensor([0, 1, 0])
X = torch.randn(3, 8)


def _make(name):
    return {"rgcn": RGCNConv, "rgat": RGATConv}[name](8, 4, 2)


@pytest.mark.parametrize("name", ["rgcn", "rgat"])
@pytest.mark.parametrize(
    ("x", "edges", "types", "said"),
    [
        (X[:, :7], EDGES, TYPES, r"`x` has shape \(3, 7\), expected \(3, 8\)"),
        (X, EDGES, torch.tensor([0, 2, 0]), "2"),
        (X, EDGES, torch.tensor([0, -1, 0]), "-1"),
        (X, EDGES, TYPES.float(), "float32"),
        (X, EDGES, TYPES[:2], "2"),
        (X, EDGES.float(), TYPES, "float32"),
        (X, EDGES.T, TYPES, r"\(3, 2\)"),
        (X, torch.tensor([[0, 5, 1], [1, 2, 2]]), TYPES, "5"),
        (X[:2], EDGES, TYPES, "2"),
        (X.long(), EDGES, TYPES, "int64"),
    ],
    ids=[
        "width",
        "relation too large",
        "relation negative",
        "relations are floats",
        "too few relations",
        "edges are floats",
        "edges turned",
        "node too large",
        "too few nodes",
        "features are whole numbers",
    ],
)
def test_named_with_numbers(name, x, edges, types, said):
    with pytest.raises((LayerArgumentError, GraphError), match=said):
        _make(name)(x, edges, types)


@pytest.mark.parametrize("name", ["rgcn", "rgat"])
def test_weights_of_the_wrong_shape(name):
    made = _make(name)
    made.weight = torch.nn.Parameter(torch.randn(3, 8, 4))
    with pytest.raises(
        LayerArgumentError, match=r"`weight` has shape \(3, 8, 4\), expected \(2, 8"
    ):
        made(X, EDGES, TYPES)


def test_a_missing_node_type():
    metadata = (["a", "b"], [("a", "to", "b")])
    made = HGTConv({"a": 4, "b": 6}, 4, metadata)
    with pytest.raises(ShorthaulError, match="a"):
        made({"b": torch.randn(2, 6)}, {("a", "to", "b"): torch.tensor([[0], [1]])})


def test_widths_of_a_node_type():
    made = HGTConv({"a": 4, "b": 6}, 4, (["a", "b"], [("a", "to", "b")]))
    features = {"a": torch.randn(2, 5), "b": torch.randn(2, 6)}
    with pytest.raises((ShorthaulError, RuntimeError), match="5"):
        made(features, {("a", "to", "b"): torch.tensor([[0], [1]])})


def test_a_graph_that_changed_after_it_was_indexed():
    source = torch.tensor([0, 1, 1])
    graph = RelationalGraph.from_edges(source, torch.tensor([1, 2, 0]))
    made = convolve(relations=1, **widths_of(convolve))
    x = torch.randn(3, 5)
    made(graph, x)
    graph.source[0] = 2
    with pytest.raises(ShorthaulError, match="`source` of the graph changed in place"):
        made(graph, x)


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_nan_reaches_exactly_what_depends_on_it(backend):
    graph = sample_graph(nodes=30, edges=400)
    made = attend(relations=16, **SIZES).double()
    made.function.backend = backend
    x = torch.randn(30, 5, dtype=torch.float64)
    x[3] = float("nan")
    out = made(graph, x)
    touched = {3} | set(graph.target[graph.source == 3].tolist())
    has_edges = set(graph.target.tolist())
    expected = [node in touched and node in has_edges for node in range(30)]
    assert out.isnan().any(1).tolist() == expected


@pytest.mark.parametrize("backend", ["cpp", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_logits_stay_finite_with_their_gradients(backend, dtype):
    graph = sample_graph(nodes=30, edges=400)
    made = attend(relations=16, **SIZES).to(dtype)
    made.function.backend = backend
    x = (torch.randn(30, 5) * 1e4).to(dtype).requires_grad_()
    out = made(graph, x)
    gradients = torch.autograd.grad(out.sum(), [x, *made.parameters()])
    assert all(bool(each.isfinite().all()) for each in (out, *gradients))


def test_repeats_are_equal_to_the_last_bit():
    graph = sample_graph(nodes=30, edges=400)
    made = attend(relations=16, **SIZES)
    x = torch.randn(30, 5, requires_grad=True)

    def call():
        out = made(graph, x)
        return out, *torch.autograd.grad(out.square().sum(), [x, *made.parameters()])

    for one, other in zip(call(), call(), strict=True):
        assert torch.equal(one, other)
