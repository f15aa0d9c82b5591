"""`shorthaul explain`: objects by name, kernels by digest, and errors that say which part is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = '''\
class Layer:
    """Something with stages."""

    def __init__(self, name):
        self.name = name

    def explain(self):
        return f"{self.name}: stage one, stage two"


layer = Layer("attention")


class holder:
    inner = Layer("inner")


def plain():
    return layer
'''


@pytest.fixture(autouse=True)
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "my_layers.py").write_text(LAYERS)
    (directory / "fails.py").write_text("ready = True\nready.forever\n")
    (directory / "needs.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.chdir(directory)
    before, modules = list(sys.path), set(sys.modules)
    yield directory
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if name in ("my_layers", "fails", "needs"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("my_layers:layer", "attention: stage one, stage two\n"),
        ("my_layers:holder.inner", "inner: stage one, stage two\n"),
    ],
)
def test_an_object_of_the_current_directory(shorthaul, subject: str, text: str) -> None:
    shown = shorthaul("explain", subject)
    assert (shown.exit_code, shown.output) == (0, text)


@pytest.mark.parametrize("by", ["name", "digest"])
def test_a_kernel_of_the_cache(shorthaul, two_answers, by: str) -> None:
    first, second = two_answers
    shown = shorthaul("explain", "answer" if by == "name" else first.digest[:10]).output
    assert f"answer_{first.digest[:8]}\nin {first.directory}, compiled in " in shown
    assert "int64_t answer() { return 1; }" in shown
    assert "kernel.cpp -o kernel.so" in shown
    assert (second.digest[:8] in shown) == (by == "name")


@pytest.mark.parametrize(
    ("subject", "exit_code", "words"),
    [
        ("my_layers:", 2, "expected MODULE:OBJECT such as my_layers:layer, got 'my_layers:'."),
        ("my_layers:layr", 1, "my_layers:layr: there is no 'layr'. Did you mean layer"),
        ("my_layer:layer", 1, "there is no module 'my_layer', neither installed nor in "),
        ("fails:x", 1, "importing fails failed: AttributeError: 'bool' object has no attribute"),
        ("fails:x", 1, "fails.py, line 2: ready.forever"),
        ("needs:x", 1, "importing needs failed: ModuleNotFoundError: No module named 'nowhere_to"),
        ("my_layers:plain", 1, "cannot explain <function plain at "),
        ("my_layers:Layer", 1, "cannot explain <class 'my_layers.Layer'>"),
        ("anser", 1, "It is empty. `shorthaul cache list` shows their digests."),
    ],
)
def test_errors_say_which_part_is_wrong(
    shorthaul, subject: str, exit_code: int, words: str
) -> None:
    shown = shorthaul("explain", subject)
    assert shown.exit_code == exit_code
    assert words in shown.stderr


ATTENTION = """\
from shorthaul.relational import NodeFeature, Weight, layer, linear, softmax


@layer
def attention(
    g,
    x: NodeFeature("width"),
    weight: Weight("relation", "width", "heads*out"),
    key: Weight("heads*out", "heads"),
    *,
    heads,
):
    for e in g.edges():
        e.value = linear(e.source.x, weight[e.relation])
        e.alpha = softmax(linear(e.value, key)).reshape(heads, 1)
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.out += e.alpha * e.value.reshape(heads, -1)
    return n.out
"""
WIDTHS = ("--size", "width=8", "--size", "out=4", "--size", "heads=2")


@pytest.fixture
def attention(layers: Path) -> Iterator[str]:
    (layers / "my_attention.py").write_text(ATTENTION)
    yield "my_attention:attention"
    sys.modules.pop("my_attention", None)


def test_a_layer_function_at_widths(shorthaul, attention: str, layers: Path) -> None:
    shown = shorthaul("explain", attention, *WIDTHS, "--picture", "flow.svg")
    assert shown.exit_code == 0, shown.stderr
    for part in ("== source ==\n@layer\n", "== compact ==", "== kernels ==\nforward\n", "backward"):
        assert part in shown.output
    assert "a graph of 10,000 nodes, 10,000 targets, 10 relations" in shown.output
    assert (layers / "flow.svg").read_text().startswith("<svg ")


def test_one_stage_for_a_graph_of_given_sizes(shorthaul, attention: str) -> None:
    sizes = ("--nodes", "50", "--edges", "300", "--relations", "7")
    shown = shorthaul("explain", attention, *WIDTHS, *sizes, "--stage", "estimate", "--inference")
    assert shown.output.startswith("== estimate ==\na graph of 50 nodes, 50 targets, 7 relations")
    assert "backward" not in shown.output


def test_a_graph_from_a_file(shorthaul, attention: str, layers: Path) -> None:
    from shorthaul.graphs import RelationalGraph

    graph = RelationalGraph.from_edges([0, 1, 2], [1, 2, 2], relation=[0, 1, 1])
    graph.save(layers / "saved")
    (layers / "edges.txt").write_text("0 1\n1 2\n2 2\n")
    for name, relations in (("saved", 2), ("edges.txt", 1)):
        shown = shorthaul(
            "explain", attention, *WIDTHS, "--graph", name, "--stage", "estimate", "--inference"
        )
        assert f"3 nodes, 3 targets, {relations} relations" in shown.output


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--size", "width"), 2, "expected --size NAME=NUMBER such as width=64, got 'width'."),
        (("--size", "width=8"), 2, "my_attention:attention needs --size heads=..."),
        (("--size", "heads=2"), 1, "`x` has the width `width`, which was not given"),
        ((*WIDTHS, "--stage", "fusion"), 1, "there is no stage 'fusion'"),
        ((*WIDTHS, "--picture", "flow.png"), 1, "a picture was asked for as flow.png"),
        ((*WIDTHS, "--graph", "my_layers.py", "--nodes", "3"), 2, "--graph has its own"),
    ],
)
def test_options_that_do_not_fit(
    shorthaul, attention: str, options: tuple[str, ...], exit_code: int, words: str
) -> None:
    shown = shorthaul("explain", attention, *options)
    assert shown.exit_code == exit_code
    assert words in shown.stderr


@pytest.mark.parametrize("subject", ["my_layers:layer", "answer"])
def test_options_are_for_layer_functions(shorthaul, subject: str) -> None:
    shown = shorthaul("explain", subject, "--stage", "kernels")
    assert shown.exit_code == 2
    assert f"--stage: options are for functions with @layer, and {subject} is none." in shown.stderr


MODEL = """\
import torch
from torch_geometric import nn
import shorthaul as sh

relations = [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")]
x = {name: torch.ones(3, 4) for name in "ab"}
edges = {each: torch.zeros(2, 1, dtype=torch.long) for each in relations}


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.SAGEConv((4, 4), 2)

    def forward(self, x, edge_index):
        return self.only(x, edge_index)


heterogeneous = nn.HeteroConv({each: nn.GINConv(torch.nn.Linear(4, 2)) for each in relations})
transformed = nn.to_hetero(Plain(), (["a", "b"], relations))
for model in (heterogeneous, transformed):
    sh.relational.accelerate(model)
    model(x, edges)
"""


@pytest.mark.parametrize("name", ["heterogeneous", "transformed"])
def test_the_one_program_of_all_relations_of_a_model(shorthaul, layers: Path, name: str) -> None:
    pytest.importorskip("torch_geometric")
    (layers / "my_model.py").write_text(MODEL)
    result = shorthaul("explain", f"my_model:{name}")
    assert result.exit_code == 0, result.output
    assert result.output.count("== one program for") == 1
    assert "== one program for a__x__b, b__y__a, a__z__a ==" in result.output
    assert "over relation" in result.output
