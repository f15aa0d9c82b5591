import pytest
import torch

from shorthaul.errors import RowIndexError, SamplingError
from shorthaul.graphs.interop.dgl_features import DGLFeatures
from shorthaul.tensors import unified
from tests.graphs.peer_environment import run_with_peers


@pytest.mark.parametrize("wrap", [lambda x: x, unified])
def test_rows_are_fetched(wrap: object) -> None:
    x = torch.randn(5, 3)
    features = DGLFeatures(wrap(x))  # type: ignore[operator]
    assert torch.equal(features.fetch(torch.tensor([4, 4, 1]), "cpu"), x[[4, 4, 1]])
    assert not features.requires_ddp()
    with pytest.raises(RowIndexError):
        features.fetch(torch.tensor([5]), "cpu")


def test_rows_are_fetched_by_type() -> None:
    x, y = torch.randn(5, 3), torch.randn(2, 8)
    features = DGLFeatures({"paper": x, "author": y})
    rows = features.fetch({"author": torch.tensor([1]), "paper": torch.tensor([0, 4])}, "cpu")
    assert torch.equal(rows["author"], y[[1]])
    assert torch.equal(rows["paper"], x[[0, 4]])
    with pytest.raises(SamplingError, match="no features of type venue; there are those of paper"):
        features.fetch({"venue": torch.tensor([1])}, "cpu")
    with pytest.raises(SamplingError, match="need indices by type"):
        features.fetch(torch.tensor([1]), "cpu")
    with pytest.raises(SamplingError, match="need features by type"):
        DGLFeatures(x).fetch({"paper": torch.tensor([1])}, "cpu")


def test_dgl_prefetches_them_unchanged() -> None:
    printed = run_with_peers(
        """
        import dgl_without_graphbolt
        import dgl, torch
        from shorthaul.errors import SamplingError
        from shorthaul.graphs.interop.dgl_features import attach_features
        from shorthaul.tensors import unified

        graph = dgl.graph((torch.randint(90, (900,)), torch.randint(90, (900,))), num_nodes=90)
        x, y = torch.randn(90, 4), torch.arange(90)
        graph.ndata["label"] = y
        attach_features(graph, {"feat": unified(x)})
        attach_features(graph, {"other": 2 * x})
        try:
            attach_features(graph, {"wrong": torch.ones(3)})
        except SamplingError as error:
            assert "a row for each of 90 nodes" in str(error)
        sampler = dgl.dataloading.NeighborSampler(
            [3, 3], prefetch_node_feats=["feat", "other"], prefetch_labels=["label"]
        )
        loader = dgl.dataloading.DataLoader(
            graph, torch.arange(90), sampler, batch_size=30, num_workers=0
        )
        for inputs, seeds, blocks in loader:
            assert torch.equal(blocks[0].srcdata["feat"], x[inputs])
            assert torch.equal(blocks[0].srcdata["other"], 2 * x[inputs])
            assert torch.equal(blocks[-1].dstdata["label"], y[seeds])
        print(len(loader))
        """,
        "dgl",
    )
    assert printed.split()[-1] == "3"
