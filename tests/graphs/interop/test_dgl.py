"""From and to DGL: a fake of its interface, and the real one where the peers are installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shorthaul.errors import GraphError, MissingPackageError
from shorthaul.graphs import RelationalGraph
from tests.graphs.fake_dgl import make_fake_dgl

ROOT = Path(__file__).parents[3]
PEERS = ROOT / ".peers"


@pytest.fixture
def dgl(monkeypatch):
    module = make_fake_dgl()
    monkeypatch.setitem(sys.modules, "dgl", module)
    return module


def typed_graph() -> RelationalGraph:
    return RelationalGraph.from_typed_edges(
        {
            ("author", "writes", "paper"): torch.tensor([[0, 1, 1], [2, 2, 0]]),
            ("paper", "cites", "paper"): torch.tensor([[0, 2], [1, 1]]),
        },
        {"author": 2, "paper": 3},
    )


def check_there_and_back(dgl) -> None:
    """With any `dgl`: the last test runs it in the peers' environment."""
    plain = RelationalGraph.from_edges([0, 2, 1], [1, 1, 0], [1, 0, 1], num_nodes=4)
    made = plain.to_dgl()
    assert made.num_nodes() == 4
    back = RelationalGraph.from_dgl(made, edge_type="_TYPE")
    assert back.source.tolist() == [0, 2, 1]
    assert back.relation.tolist() == [1, 0, 1]
    assert RelationalGraph.from_dgl(made, torch.tensor([0, 5, 1])).num_relations == 6
    bare = RelationalGraph.from_dgl(made)
    assert bare.relations == (("node", "to", "node"),)
    assert bare.node_types == ("node",)

    graph = typed_graph()
    back = RelationalGraph.from_dgl(graph.to_dgl())
    assert back.node_types == graph.node_types
    assert back.nodes_per_type == (2, 3)
    assert set(back.relations) == set(graph.relations)
    for name in ("writes", "cites"):
        one, other = (
            {
                (int(each.source[edge]), int(each.target[edge]))
                for edge in range(each.num_edges)
                if each.relation[edge] == each.relation_number(name)
            }
            for each in (graph, back)
        )
        assert one == other
    empty = RelationalGraph.from_edges([], [], num_nodes=2)
    assert RelationalGraph.from_dgl(empty.to_dgl()).num_nodes == 2


def test_there_and_back(dgl) -> None:
    check_there_and_back(dgl)


def test_what_is_no_dgl_graph() -> None:
    with pytest.raises(GraphError, match="expected a DGL graph, got int"):
        RelationalGraph.from_dgl(3)


def test_edge_types_that_do_not_fit(dgl) -> None:
    with pytest.raises(GraphError, match="2 relations of its own, so edge_type must be left out"):
        RelationalGraph.from_dgl(typed_graph().to_dgl(), torch.tensor([0]))
    made = RelationalGraph.from_edges([0], [1]).to_dgl()
    with pytest.raises(GraphError, match="no edge data `kind`; it has none"):
        RelationalGraph.from_dgl(made, "kind")


def test_without_dgl(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(
        MissingPackageError, match=r"RelationalGraph\.to_dgl\(\) needs the package `dgl`"
    ):
        typed_graph().to_dgl()


@pytest.mark.skipif(
    not list(PEERS.glob("lib/python3*/site-packages/dgl")), reason="`make peers` installs DGL"
)
def test_the_real_dgl() -> None:
    # Their own packages first; ours, such as rich and pytest, only where they have none.
    ours = [str(ROOT / "benchmarks" / "peers"), str(ROOT / "src"), str(ROOT), *sys.path]
    script = f"""
import sys
sys.path += {ours!r}
import dgl_without_graphbolt
import dgl
from tests.graphs.test_exchange_dgl import check_there_and_back
assert ".peers" in dgl.__file__
check_there_and_back(dgl)
print("same")
"""
    done = subprocess.run(
        [PEERS / "bin" / "python", "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.strip().endswith("same"), done.stderr
