"""Samplers of every kind, negatives, loaders of links and of PyG, and graphs of tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from tests.matrix.graph_operations import EDGES, FAN_OUTS, NODES, edges, list_blocks, make_graph
from tests.matrix.operation import Operation, Run, Tensors, random_numbers, random_tensor


def _described() -> dict[str, torch.Tensor]:
    return {
        **edges(),
        "seeds": random_numbers(NODES, 8, seed=5),
        "moments": 5 + random_numbers(9, 8, seed=6),
        "weight": random_tensor(EDGES).abs(),
        "node_times": random_numbers(12, NODES, seed=7),
        "edge_times": random_numbers(12, EDGES, seed=8),
        "x": random_tensor(NODES, 5).abs(),
    }


def _make_sampler(given: Tensors, options: dict[str, Any]) -> sh.NeighborSampler:
    """Columns are named by the input that they are."""
    columns = ("weights", "node_times", "edge_times")
    named = {name: given[each] if name in columns else each for name, each in options.items()}
    return sh.NeighborSampler(make_graph(given), FAN_OUTS, seed=7, **named)


def _list_sample(sample: Any) -> Tensors:
    found = {"seeds": sample.seeds.long(), **list_blocks(sample.blocks)}
    return found if sample.trees is None else {**found, "trees": sample.trees.long()}


def _sampling(name: str, *, is_heavy: bool = True, **options: Any) -> Operation:
    def times(given: Tensors) -> torch.Tensor | None:
        has_times = "node_times" in options or "edge_times" in options
        return given["moments"] if has_times else None

    def prepare(given: Tensors, _: Path) -> Run:
        return lambda: _list_sample(
            _make_sampler(given, options).sample(given["seeds"], times=times(given), number=3)
        )

    def plain(given: Tensors) -> Tensors:
        sampler = _make_sampler(given, options)
        return _list_sample(sampler.sample_plainly(given["seeds"], 3, times=times(given)))

    return Operation(f"NeighborSampler {name}", _described, prepare, plain, is_heavy=is_heavy)


def _list_negatives(drawn: sh.graphs.NegativeEdges) -> Tensors:
    return {name: getattr(drawn, name).long() for name in ("sources", "targets", "relations")}


def _negatives(name: str, *, is_heavy: bool = True, **options: Any) -> Operation:
    def draw(given: Tensors, method: str) -> Tensors:
        columns = ("weights", "node_times")
        named = {each: given[to] if each in columns else to for each, to in options.items()}
        sampler = sh.NegativeSampler(make_graph(given), seed=7, **named)
        ends = (given[each][:20] for each in ("source", "target", "relation"))
        times = given["edge_times"][:20] + 3 if "node_times" in options else None
        return _list_negatives(getattr(sampler, method)(*ends, count=2, times=times, number=3))

    return Operation(
        f"NegativeSampler{name}",
        _described,
        lambda given, _: lambda: draw(given, "sample"),
        lambda given: draw(given, "sample_plainly"),
        is_heavy=is_heavy,
    )


def _linked(prefetch: int) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, _: Path) -> Run:
        def run() -> Tensors:
            graph = make_graph(given)
            loader = sh.LinkLoader(
                graph,
                given["x"],
                given["seeds"],
                batch_size=3,
                fan_outs=FAN_OUTS,
                negatives=sh.NegativeSampler(graph, seed=7),
                leaves_out="edge",
                shuffle=True,
                seed=7,
                prefetch=prefetch,
            )
            found: dict[str, torch.Tensor] = {}
            for batch in loader:
                own = {**list_blocks(batch.blocks), "labels": batch.labels.clone()}
                own |= {
                    name: getattr(batch, name).long() for name in ("seeds", "sources", "targets")
                }
                assert batch.edges is not None
                for block in batch.blocks:
                    assert not torch.isin(block.edges.long(), batch.edges).any()
                assert torch.equal(batch.features, given["x"][batch.input_nodes.long()])
                found |= {f"batch {batch.number} {name}": each for name, each in own.items()}
            return found

        return run

    return prepare


def _of_pyg(given: Tensors, _: Path) -> Run:
    """What a batch of PyG's has must belong together; which edges are drawn is by chance."""
    loaders = pytest.importorskip("torch_geometric.loader", reason="PyG is not installed")
    data = pytest.importorskip("torch_geometric.data").Data(
        x=given["x"], edge_index=torch.stack([given["source"], given["target"]]).long()
    )

    def run() -> Tensors:
        # All neighbors: what is drawn is known.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyG's, of the sampler that is replaced
            loader = loaders.NeighborLoader(
                data, [-1, -1], given["seeds"].long().unique(), batch_size=4
            )
        found: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(sh.graphs.accelerate_loader(loader)):
            assert torch.equal(batch.x, given["x"][batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            found[f"{number} nodes"] = batch.n_id.sort().values
            found[f"{number} edges"] = batch.e_id.sort().values
        return found

    return run


def _of_stores(given: Tensors, _: Path) -> Run:
    pytest.importorskip("torch_geometric", reason="PyG is not installed")

    def run() -> Tensors:
        from torch_geometric.data import TensorAttr

        from shorthaul.graphs.interop.pyg_stores import FeatureStore, GraphStore

        graph = sh.RelationalGraph.from_edges(given["source"], given["target"], num_nodes=NODES)
        store = FeatureStore(graph, {"x": given["x"]})
        sources, pointers, ids = GraphStore(graph).csc()
        rows = store.get_tensor(TensorAttr(None, "x", given["seeds"].long()))
        return {"rows": rows, "sources": sources, "pointers": pointers, "edges": ids}

    return run


def _plain_stores(given: Tensors) -> Tensors:
    source, target = given["source"].long(), given["target"].long()
    order = torch.argsort(target, stable=True)
    counts = torch.bincount(target, minlength=NODES)
    return {
        "rows": given["x"][given["seeds"].long()],
        "sources": source[order],
        "pointers": torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        "edges": order,
    }


def _of_tables(given: Tensors, _: Path) -> Run:
    pytest.importorskip("duckdb", reason="DuckDB is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="Arrow is not installed")
    ids, amounts = list(range(NODES)), given["x"][:, 0].tolist()
    users = pyarrow.table({"id": ids, "amount": amounts, "time": given["node_times"].tolist()})
    orders = pyarrow.table({"buyer": given["source"].tolist()})

    def run() -> Tensors:
        tables = {
            "users": sh.graphs.Table(users, primary_key="id", time="time"),
            "orders": sh.graphs.Table(orders, foreign_keys={"buyer": "users"}),
        }
        made = sh.graphs.from_tables(tables)
        return {
            "source": made.graph.source.long(),
            "target": made.graph.target.long(),
            "features": made.features["users"],
            "time": made.graph.node_data["time"],
        }

    return run


def _plain_tables(given: Tensors) -> Tensors:
    amounts = given["x"][:, 0].double()
    scaled = (amounts - amounts.mean()) / amounts.std(correction=0)
    buyers, rows = given["source"].long(), NODES + torch.arange(EDGES)
    none = torch.full((EDGES,), -(2**63), dtype=torch.int64)
    return {
        "source": torch.cat([rows, buyers]),
        "target": torch.cat([buyers, rows]),
        "features": torch.stack([scaled, torch.zeros(NODES, dtype=torch.float64)], 1).float(),
        "time": torch.cat([given["node_times"].long(), none]),
    }


OPERATIONS = (
    _sampling("weighted", is_heavy=False, weights="weight"),
    _sampling("weighted, replaced", weights="weight", replace=True),
    _sampling("with times", is_heavy=False, node_times="node_times", edge_times="edge_times"),
    _sampling("weighted with times", weights="weight", edge_times="edge_times"),
    _sampling("of the latest", strategy="last", edge_times="edge_times"),
    _sampling("labor", is_heavy=False, strategy="labor"),
    _sampling("in trees", disjoint=True),
    _negatives("", is_heavy=False),
    _negatives(" of both ends", replaces="both", exponent=0.75),
    _negatives(" with times", replaces="either", node_times="node_times"),
    Operation("LinkLoader", _described, _linked(0)),
    Operation("LinkLoader ahead", _described, _linked(2), is_heavy=True),
    Operation("accelerate_loader", _described, _of_pyg, is_heavy=True),
    Operation("stores of PyG", _described, _of_stores, _plain_stores, is_heavy=True),
    Operation("from_tables", _described, _of_tables, _plain_tables, is_heavy=True, tolerance=1e-5),
)
