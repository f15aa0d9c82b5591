"""PyG's loaders with our sampler: every edge is one of the data, and batches look as PyG's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import SamplingError
from shorthaul.graphs import RelationalGraph

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader, LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling

from shorthaul.graphs.interop.pyg_stores import FeatureStore, GraphStore

pytestmark = pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")


def homogeneous() -> Data:
    torch.manual_seed(0)
    edge_index = torch.randint(60, (2, 500))
    return Data(
        x=torch.arange(60)[:, None],
        edge_index=edge_index,
        edge_attr=torch.arange(500)[:, None],
        time=torch.randint(20, (60,)),
        weight=torch.rand(500),
    )


def heterogeneous() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].x = torch.arange(30)[:, None]
    data["item"].x = torch.arange(40)[:, None] + 100
    for one, name, other, count in (
        ("user", "buys", "item", 200),
        ("item", "rev_buys", "user", 200),
        ("user", "knows", "user", 90),
    ):
        store = data[one, name, other]
        sizes = [30 if kind == "user" else 40 for kind in (one, other)]
        store.edge_index = torch.stack([torch.randint(size, (count,)) for size in sizes])
        store.edge_attr = torch.arange(count)[:, None]
        store.when = torch.randint(20, (count,))
    return data


def verify_hetero(data: HeteroData, batch: HeteroData, hops: int) -> None:
    for kind in data.node_types:
        assert torch.equal(batch[kind].x, data[kind].x[batch[kind].n_id])
        assert len(batch[kind].num_sampled_nodes) == hops + 1
        assert sum(batch[kind].num_sampled_nodes) == len(batch[kind].n_id)
    for kind in data.edge_types:
        one, _, other = kind
        store = batch[kind]
        ends = torch.stack(
            [batch[one].n_id[store.edge_index[0]], batch[other].n_id[store.edge_index[1]]]
        )
        assert torch.equal(ends, data[kind].edge_index[:, store.e_id])
        assert torch.equal(store.edge_attr[:, 0], store.e_id)
        assert len(store.num_sampled_edges) == hops
        assert sum(store.num_sampled_edges) == store.edge_index.shape[1]


@pytest.mark.parametrize(
    "options", [{}, {"disjoint": True}, {"weight_attr": "weight"}, {"time_attr": "time"}]
)
def test_batches_of_homogeneous_data(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_geometric.typing.WITH_WEIGHTED_NEIGHBOR_SAMPLE", True)
    data, seeds = homogeneous(), torch.arange(5, 45)
    moments = {"input_time": torch.full((40,), 10)} if "time_attr" in options else {}
    loader = sh.graphs.accelerate_loader(
        NeighborLoader(data, [4, 3], seeds, batch_size=16, **options, **moments)
    )
    for number, batch in enumerate(loader):
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        own = seeds[16 * number : 16 * (number + 1)]
        assert torch.equal(batch.n_id[: batch.batch_size], own)
        assert batch.input_id.tolist() == list(range(16 * number, 16 * number + len(own)))
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        targets = batch.edge_index[1].bincount(minlength=len(own))[: len(own)]
        degrees = data.edge_index[1].bincount(minlength=60)[own]
        if "time_attr" in options:
            assert (data.time[batch.n_id[batch.batch_size :]] <= 10).all()
        else:
            assert torch.equal(targets, degrees.clamp(max=4))
        if "weight_attr" not in options and options:
            one, other = batch.edge_index
            assert torch.equal(batch.batch[one], batch.batch[other])
            assert batch.batch[: len(own)].tolist() == list(range(len(own)))
        else:
            assert len(set(batch.n_id.tolist())) == batch.num_nodes


def test_heavy_neighbors_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_geometric.typing.WITH_WEIGHTED_NEIGHBOR_SAMPLE", True)
    data = homogeneous()
    data.weight = (torch.arange(500) % 2).float()  # the order of PyG's sampler is another one
    loader = sh.graphs.accelerate_loader(
        NeighborLoader(data, [-1], weight_attr="weight", batch_size=60)
    )
    (batch,) = loader
    assert sorted(batch.e_id.tolist()) == list(range(1, 500, 2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [False, True])
def test_batches_of_typed_data(workers: int, filter_per_worker: bool) -> None:
    data = heterogeneous()
    fan_outs = {kind: [3, 2] for kind in data.edge_types} | {("user", "knows", "user"): [0, 1]}
    changed = []

    def transform(batch: HeteroData) -> HeteroData:
        batch["user"].doubled = 2 * batch["user"].x
        changed.append(1)
        return batch

    loader = sh.graphs.accelerate_loader(
        NeighborLoader(
            data,
            fan_outs,
            ("item", torch.arange(0, 40, 2)),
            batch_size=7,
            transform=transform,
            num_workers=workers,
            filter_per_worker=filter_per_worker,
        )
    )
    batches = list(loader)
    assert [each["item"].batch_size for each in batches] == [7, 7, 6]
    for number, batch in enumerate(batches):
        verify_hetero(data, batch, 2)
        own = torch.arange(0, 40, 2)[7 * number : 7 * number + 7]
        assert torch.equal(batch["item"].n_id[: len(own)], own)
        assert torch.equal(batch["user"].doubled, 2 * batch["user"].x)
        assert batch["user", "knows", "user"].num_sampled_edges[0] == 0
        counts = batch["user", "buys", "item"].edge_index[1].bincount(minlength=len(own))
        degrees = data["user", "buys", "item"].edge_index[1].bincount(minlength=40)
        assert torch.equal(counts[: len(own)], degrees[own].clamp(max=3))


def test_random_numbers_follow_torch() -> None:
    loader = sh.graphs.accelerate_loader(
        NeighborLoader(heterogeneous(), [2, 2], "user", batch_size=30)
    )

    def draw(seed: int) -> list[int]:
        torch.manual_seed(seed)
        (batch,) = loader
        return batch["user", "buys", "item"].e_id.tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_edges_are_not_later_than_their_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_geometric.typing.WITH_EDGE_TIME_NEIGHBOR_SAMPLE", True)
    data, moments = heterogeneous(), torch.randint(20, (30,))
    for strategy in ("uniform", "last"):
        loader = sh.graphs.accelerate_loader(
            NeighborLoader(
                data,
                [5, 5],
                ("user", torch.arange(30)),
                batch_size=10,
                time_attr="when",
                input_time=moments,
                temporal_strategy=strategy,
            )
        )
        for number, batch in enumerate(loader):
            verify_hetero(data, batch, 2)
            own = moments[10 * number : 10 * number + 10]
            assert torch.equal(batch["user"].seed_time, own)
            for kind in data.edge_types:
                store = batch[kind]
                trees = batch[kind[0]].batch[store.edge_index[0]]
                assert (store.when <= own[trees]).all()


@pytest.mark.parametrize("mode", ["binary", "triplet", None])
@pytest.mark.parametrize("disjoint", [False, True])
def test_batches_of_links(mode: str | None, disjoint: bool) -> None:
    data, kind = heterogeneous(), ("user", "buys", "item")
    pairs = data[kind].edge_index[:, :50]
    loader = sh.graphs.accelerate_loader(
        LinkNeighborLoader(
            data,
            [3, 2],
            (kind, pairs),
            neg_sampling=NegativeSampling(mode, 2) if mode else None,
            batch_size=20,
            disjoint=disjoint,
        )
    )
    for number, batch in enumerate(loader):
        verify_hetero(data, batch, 2)
        own = pairs[:, 20 * number : 20 * (number + 1)]
        count = own.shape[1]
        users, items = batch["user"].n_id, batch["item"].n_id
        if mode == "triplet":
            assert torch.equal(users[batch["user"].src_index], own[0])
            assert torch.equal(items[batch["item"].dst_pos_index], own[1])
            assert batch["item"].dst_neg_index.shape == (count, 2)
        else:
            index = batch[kind].edge_label_index
            assert torch.equal(torch.stack([users[index[0]], items[index[1]]])[:, :count], own)
            assert index.shape[1] == count * (3 if mode else 1)
            if mode:
                assert batch[kind].edge_label.tolist() == [1.0] * count + [0.0] * (2 * count)
        if disjoint:
            assert int(batch["user"].batch.max()) < count


def test_stores_are_sampled_as_the_data_is() -> None:
    data = heterogeneous()
    graph = RelationalGraph.from_pyg(data)
    features = FeatureStore(graph, {kind: {"x": data[kind].x} for kind in data.node_types})
    loaders = [
        sh.graphs.accelerate_loader(
            NeighborLoader(each, [3, 2], ("item", torch.arange(40)), batch_size=40)
        )
        for each in (data, (features, GraphStore(graph)))
    ]
    torch.manual_seed(3)
    (one,) = loaders[0]
    torch.manual_seed(3)
    (other,) = loaders[1]
    for kind in data.node_types:
        assert torch.equal(one[kind].n_id, other[kind].n_id)
        assert torch.equal(one[kind].x, other[kind].x)
    for kind in data.edge_types:
        assert torch.equal(one[kind].edge_index, other[kind].edge_index)
        assert torch.equal(one[kind].e_id, other[kind].e_id)


def test_both_directions() -> None:
    loader = sh.graphs.accelerate_loader(
        NeighborLoader(
            homogeneous(), [3], torch.arange(9), batch_size=9, subgraph_type="bidirectional"
        )
    )
    (batch,) = loader
    edges = set(map(tuple, batch.edge_index.t().tolist()))
    assert edges == {(other, one) for one, other in edges}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: object(), "object has no sampler that could be replaced"),
        (
            lambda: NeighborLoader(homogeneous(), [2], subgraph_type="induced"),
            "subgraph_type='induced' is not supported",
        ),
    ],
)
def test_what_cannot_be_replaced_is_named(make: Any, told: str) -> None:
    with pytest.raises(SamplingError, match=told):
        sh.graphs.accelerate_loader(make())


def test_a_loader_of_budgets_is_drawn_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_geometric.sampler.hgt_sampler.WITH_TORCH_SPARSE", True)
    data = heterogeneous()
    data["user"].y = torch.arange(30)
    wanted = {"user": [4, 3], "item": [5, 2]}
    made = HGTLoader(data, wanted, input_nodes=("user", torch.arange(12)), batch_size=6)
    loader = sh.graphs.accelerate_loader(made)
    assert loader is made
    assert sh.graphs.accelerate_loader(loader) is loader
    torch.manual_seed(3)
    batches = list(loader)
    assert len(batches) == 2
    for number, batch in enumerate(batches):
        seeds = torch.arange(6) + 6 * number
        assert torch.equal(batch["user"].n_id[:6], seeds)
        assert torch.equal(batch["user"].input_id, seeds)
        assert batch["user"].batch_size == 6
        assert [len(batch[kind].n_id) for kind in ("user", "item")] == [6 + 4 + 3, 5 + 2]
        for kind in data.node_types:
            assert torch.equal(batch[kind].x, data[kind].x[batch[kind].n_id])
        assert torch.equal(batch["user"].y, batch["user"].n_id)
        for kind in data.edge_types:
            ends = torch.stack(
                [
                    batch[each].n_id[row]
                    for each, row in zip(kind[::2], batch[kind].edge_index, strict=True)
                ]
            )
            assert torch.equal(ends, data[kind].edge_index[:, batch[kind].e_id])
            assert torch.equal(batch[kind].edge_attr, data[kind].edge_attr[batch[kind].e_id])
        assert sum(batch[kind].num_edges for kind in data.edge_types) > 50
    torch.manual_seed(3)
    again = list(loader)
    assert all(
        torch.equal(one["item"].n_id, other["item"].n_id)
        for one, other in zip(batches, again, strict=True)
    )


def test_a_seed_that_comes_twice_in_a_loader_of_budgets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch_geometric.sampler.hgt_sampler.WITH_TORCH_SPARSE", True)
    made = HGTLoader(heterogeneous(), [4], ("user", torch.tensor([3, 3])), batch_size=2)
    with pytest.raises(SamplingError, match="2 seeds of a batch are 1 nodes"):
        next(iter(sh.graphs.accelerate_loader(made)))


def test_a_seed_that_comes_twice_is_refused() -> None:
    loader = sh.graphs.accelerate_loader(
        NeighborLoader(homogeneous(), [2], torch.tensor([3, 3]), batch_size=2)
    )
    with pytest.raises(SamplingError, match="2 seeds of a batch are 1 nodes"):
        next(iter(loader))
    assert sh.graphs.accelerate_loader(loader) is loader
