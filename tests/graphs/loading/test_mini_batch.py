import torch

from shorthaul.graphs import MiniBatch, MiniBatchLoader
from tests.graphs.sampled_graphs import random_graph


def make() -> MiniBatch:
    graph = random_graph(20, 100)
    features = {"node": torch.randn(20, 3)}
    (batch,) = MiniBatchLoader(graph, features, torch.arange(20), range(5), fan_outs=[2, 2])
    return batch


def test_everything_moves() -> None:
    batch = make().to("meta")
    assert batch.labels is not None
    assert isinstance(batch.features, dict)
    assert batch.type_positions is not None
    tensors = [batch.seeds, batch.seed_rows, batch.labels, batch.features["node"]]
    tensors += [batch.type_positions["node"], *(block.sources for block in batch.blocks)]
    assert {each.device.type for each in tensors} == {"meta"}


def test_a_batch_says_what_it_is() -> None:
    batch = make()
    assert repr(batch) == f"MiniBatch(0: 5 seeds, {len(batch.input_nodes)} input nodes)"


def test_what_is_not_there_stays_away() -> None:
    (batch,) = MiniBatchLoader(random_graph(20, 100), seeds=[3], fan_outs=[])
    moved = batch.to("cpu")
    assert (moved.features, moved.labels, moved.type_positions) == (None, None, None)
    assert moved.input_nodes.tolist() == [3]
