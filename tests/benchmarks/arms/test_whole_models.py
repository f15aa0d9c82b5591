"""The arms of the question on whole models compute the same, gradients of all parameters included."""

import pytest
import torch

from shorthaul.graphs import RelationalGraph

pytest.importorskip("torch_geometric.nn")

from benchmarks.arms import whole_models

pytestmark = pytest.mark.filterwarnings("ignore")


def _small_graph(_name):
    pairs = {
        ("author", "writes", "paper"): torch.randint(9, (2, 40)),
        ("paper", "cites", "paper"): torch.randint(9, (2, 40)),
    }
    return RelationalGraph.from_typed_edges(pairs, {"author": 10, "paper": 9}).with_inverses()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["SAGE", "to_hetero SAGE"])
def test_ours_computes_what_pyg_does(kind, training, monkeypatch):
    torch.manual_seed(1)
    graph = _small_graph("")
    monkeypatch.setattr(whole_models, "load_graph", lambda name: graph)
    results = [
        whole_models.make_model(arm, kind, "small", training, torch.get_num_threads())()
        for arm in ("PyG", "shorthaul")
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5)
