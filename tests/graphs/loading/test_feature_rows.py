import pytest
import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.loading.feature_rows import FeatureRows, as_table
from shorthaul.storage import BufferPool
from shorthaul.tensors import unified
from shorthaul.tensors.tables.table import HostTable


def test_tensors_unified_tensors_and_tables_become_tables() -> None:
    values = torch.randn(4, 2)
    for each in (values, unified(values), HostTable(values)):
        assert torch.equal(as_table(each, "features", 4).gather(torch.tensor([3])), values[[3]])


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(SamplingError, match=r"got ndarray.\n  `sh.unified\(array\)` takes numpy"):
        as_table(torch.ones(2).numpy(), "features", 2)
    with pytest.raises(SamplingError, match="requires gradients"):
        as_table(unified(torch.ones(2, 2)).requires_grad_(), "features", 2)


def test_large_results_come_from_the_pool_and_small_ones_do_not() -> None:
    graph = RelationalGraph.from_edges([], [], num_nodes=1000)
    features = FeatureRows(graph, torch.randn(1000, 64))
    with BufferPool("4MiB") as pool:
        small, _ = features.gather(torch.arange(3), pool)
        assert pool.in_use_bytes == 0
        large, _ = features.gather(torch.arange(1000), pool)
        assert pool.in_use_bytes >= 1000 * 64 * 4
        assert isinstance(small, torch.Tensor)
        assert isinstance(large, torch.Tensor)
        assert torch.equal(small, large[:3])


def test_without_features_there_are_no_rows() -> None:
    graph = RelationalGraph.from_edges([], [], num_nodes=3)
    with BufferPool("1MiB") as pool:
        assert FeatureRows(graph, None).gather(torch.arange(3), pool) == (None, None)
        assert FeatureRows(graph, {}).gather(torch.arange(3), pool) == ({}, {})
