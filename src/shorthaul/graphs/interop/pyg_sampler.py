"""PyG's sampler interface over `NeighborSampler`: the same outputs, drawn by generated C++.

::

    PyG's NeighborSampler --(graph, fan-outs, times, weights)--> read_settings --> PyGSampler
    NodeLoader, LinkLoader --> sample_from_nodes, sample_from_edges --> SamplerOutput, HeteroSamplerOutput

This module needs `torch_geometric` (`pip install 'shorthaul[pyg]'`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shorthaul.errors import MissingExtraError, SamplingError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.interop.pyg_stores import GraphStore
from shorthaul.graphs.interop.typed_output import require_distinct, sort_edges, sort_nodes
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.graphs.sampling.sampler import NeighborSampler

try:
    from torch_geometric import sampler as pyg
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample
except ImportError as error:
    raise MissingExtraError("torch_geometric", "pyg", "a sampler for PyG's loaders") from error


class PyGSampler(pyg.BaseSampler):  # type: ignore[misc]
    """Draws what a `torch_geometric.sampler.NeighborSampler` would, by ours.

    Random numbers follow `torch.manual_seed`, also in the workers of a `DataLoader`.
    """

    def __init__(self, theirs: Any, data: Any) -> None:
        _require_known(theirs)
        self.is_hetero = bool(theirs.is_hetero)
        self.is_bidirectional = theirs.subgraph_type is pyg.base.SubgraphType.bidirectional
        self.num_nodes, self.node_time = theirs.num_nodes, theirs.node_time
        graph, columns = _read_columns(theirs, _read_graph(data, is_hetero=self.is_hetero))
        weights = "weights" in columns
        strategy = "weighted" if weights else "uniform"
        self.sampler = NeighborSampler(
            graph,
            _read_fan_outs(theirs, graph),
            replace=theirs.replace,
            resample=False,  # a node keeps the neighbors that it got first
            strategy="last" if theirs.temporal_strategy == "last" and columns else strategy,
            disjoint=theirs.disjoint,
            **columns,
        )

    @property
    def graph(self) -> RelationalGraph:
        """The graph that is sampled from."""
        return self.sampler.graph

    @property
    def disjoint(self) -> bool:
        """Whether every seed has a tree of its own."""
        return self.sampler.rule.disjoint

    @property
    def edge_permutation(self) -> None:
        """None: the ids of sampled edges are those of the user's edges."""
        return

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """The subgraph around nodes, as PyG's loaders take it."""
        return self._finish(node_sample(inputs, self._sample))

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
        """The subgraph around the ends of edges and of PyG's negatives for them."""
        return self._finish(
            edge_sample(
                inputs, self._sample, self.num_nodes, self.disjoint, self.node_time, neg_sampling
            )
        )

    def _finish(self, out: Any) -> Any:
        return out.to_bidirectional() if self.is_bidirectional else out

    def _sample(self, seed: Any, seed_time: Any = None) -> Any:
        number = int(torch.randint(2**62, (1,), dtype=torch.int64, device="cpu"))
        if isinstance(seed, Mapping):
            offsets = {kind: self.graph.nodes_of(kind).start for kind in seed}
            seeds = torch.cat([ids.long() + offsets[kind] for kind, ids in seed.items()])
            times = None if seed_time is None else torch.cat([seed_time[kind] for kind in seed])
        else:
            seeds, times = seed, seed_time
        sample = self.sampler.sample(seeds, times=times, number=number)
        remedy = "Give each node once, or make the loader with disjoint=True."
        require_distinct(sample, seeds, remedy)
        return self._type(sample) if isinstance(seed, Mapping) else _output(sample)

    def _type(self, sample: NeighborSample) -> Any:
        """By node type and edge type, with ids that count within each."""
        graph = self.graph
        stops, edge_stops = _count_hops(sample)
        of_types, local = sort_nodes(graph, sample.input_nodes.long())
        out = pyg.HeteroSamplerOutput({}, {}, {}, {}, None, {}, {})
        if sample.trees is not None:
            out.batch = {}
        for kind, (ids, is_own) in of_types.items():
            out.node[kind] = ids
            out.num_sampled_nodes[kind] = _count_parts(is_own, stops)
            if out.batch is not None and sample.trees is not None:
                out.batch[kind] = sample.trees[is_own].long()
        row, col, edges, relations = _list_edges(sample)
        for key, (is_own, ids) in sort_edges(graph, edges, relations).items():
            out.edge[key] = ids
            out.row[key], out.col[key] = local[row[is_own]], local[col[is_own]]
            out.num_sampled_edges[key] = _count_parts(is_own, edge_stops)
        return out

    def __repr__(self) -> str:
        return f"PyGSampler({self.sampler!r})"


def _output(sample: NeighborSample) -> Any:
    row, col, edges, _ = _list_edges(sample)
    nodes = sample.input_nodes.long()
    stops, edge_stops = _count_hops(sample)
    return pyg.SamplerOutput(
        nodes,
        row,
        col,
        edges,
        None if sample.trees is None else sample.trees.long(),
        _count_parts(torch.ones_like(nodes, dtype=torch.bool), stops),
        _count_parts(torch.ones_like(row, dtype=torch.bool), edge_stops),
    )


def _list_edges(sample: NeighborSample) -> tuple[torch.Tensor, ...]:
    """Sources, targets, ids and relations of all edges, in the order of the hops."""
    if not sample.blocks:
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        return nothing, nothing, nothing, nothing
    block = sample.blocks[0]  # without drawing anew, the first layer's block holds all of them
    row, col = block.edge_index()
    return row, col, block.edges.long(), block.relations.long()


def _count_hops(sample: NeighborSample) -> tuple[list[int], list[int]]:
    """How many nodes and edges there are after each hop."""
    hops = sample.blocks[::-1]
    return [sample.seeds.shape[0], *(each.num_sources for each in hops)], [
        each.num_edges for each in hops
    ]


def _count_parts(is_own: torch.Tensor, stops: list[int]) -> list[int]:
    counts = [int(is_own[:stop].sum()) for stop in stops]
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]


def _require_known(theirs: Any) -> None:
    """Raise for what only PyG's own sampler does."""
    if not isinstance(theirs, pyg.NeighborSampler):
        raise SamplingError(
            f"the loader draws with {type(theirs).__name__}; PyG's NeighborSampler can be replaced, as it is "
            "in NeighborLoader and LinkNeighborLoader."
        )
    if theirs.subgraph_type is pyg.base.SubgraphType.induced:
        raise SamplingError(
            "subgraph_type='induced' is not supported: use 'directional' or 'bidirectional'."
        )
    if theirs.sample_direction != "forward":
        raise SamplingError("sample_direction='backward' is not supported: reverse the edges.")


def _read_graph(data: Any, *, is_hetero: bool) -> RelationalGraph:
    if isinstance(data, HeteroData):
        return RelationalGraph.from_pyg(data)
    if isinstance(data, Data):  # relations of a homogeneous graph are no types to its sampler
        return RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    store = data[1]
    if not isinstance(store, GraphStore):
        raise SamplingError(
            f"the edges lie in {type(store).__name__}, which shorthaul cannot read: pass "
            "`shorthaul.graphs.interop.pyg_stores.GraphStore(graph)`."
        )
    assert is_hetero == (len(store.graph.node_types) > 1 or store.graph.num_relations > 1)
    return store.graph


def _read_fan_outs(theirs: Any, graph: RelationalGraph) -> list[Any]:
    if not theirs.is_hetero:
        return list(theirs.num_neighbors.get_values())
    values = theirs.num_neighbors.get_values([tuple(each) for each in graph.relations])
    hops = len(next(iter(values.values()))) if values else 0
    return [{each: values[tuple(each)][hop] for each in graph.relations} for hop in range(hops)]


def _read_columns(theirs: Any, graph: RelationalGraph) -> tuple[RelationalGraph, dict[str, Any]]:
    """The graph with its times and weights, and which of them the sampler looks at."""
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    if theirs.node_time is not None:
        nodes["node_times"] = theirs.node_time
    for name, given in (("edge_times", theirs.edge_time), ("weights", theirs.edge_weight)):
        if given is not None:
            edges[name] = _restore(theirs, given)
    return graph.with_data(nodes=nodes, edges=edges), {name: name for name in (*nodes, *edges)}


def _restore(theirs: Any, given: Any) -> Any:
    """A column of edges in the order of the user's edges: PyG's sampler has sorted it."""

    def undo(values: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
        if order is None or theirs.data_type is pyg.base.DataType.remote:
            return values
        restored = torch.empty_like(values)
        restored[order] = values
        return restored

    if not isinstance(given, Mapping):
        return undo(given, theirs.perm)
    types = theirs.to_edge_type
    perm = theirs.perm or {}
    return {types[name]: undo(values, perm.get(types[name])) for name, values in given.items()}
