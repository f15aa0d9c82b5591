"""`LinkLoader`: edges and negative edges as seeds, sampled and gathered while the model trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.attached_data import range_of_relation
from shorthaul.graphs.edge_tensors import as_plain, numbers_at, read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.edge_columns import EdgeColumns
from shorthaul.graphs.loading.epochs import CACHE, EpochLoader, attach_graph, choose_sampler
from shorthaul.graphs.loading.feature_rows import FeatureRows, as_table
from shorthaul.graphs.loading.link_batch import LinkBatch, LinkSample
from shorthaul.graphs.loading.link_drawer import LinkDrawer, TrueLinks
from shorthaul.graphs.loading.typed_batch import GraphTypes
from shorthaul.graphs.sampling.candidates.edges_between import read_reverses
from shorthaul.graphs.sampling.candidates.excluded import read_edge_ids
from shorthaul.graphs.sampling.candidates.rules import read_column
from shorthaul.graphs.sampling.fan_outs import FanOut
from shorthaul.graphs.sampling.negatives.negative_sampler import (
    NegativeSampler,
    read_relations,
    require_end,
)
from shorthaul.graphs.sampling.sampler import NeighborSampler
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork

LEFT_OUT = (None, "edge", "edge_and_reverse")


class LinkLoader(EpochLoader[LinkSample, LinkBatch]):
    """Iterates over batches of edges, with negatives, and the blocks around the ends of all of them.

    >>> import torch
    >>> from shorthaul.graphs import LinkLoader, NegativeSampler, RelationalGraph
    >>> graph = RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> loader = LinkLoader(graph, torch.randn(4, 8), batch_size=2, fan_outs=[2],
    ...                     negatives=NegativeSampler(graph), leaves_out="edge")
    >>> for batch in loader:
    ...     print(batch.labels.tolist(), batch.sources.shape == batch.targets.shape)
    [1.0, 1.0, 0.0, 0.0] True
    [1.0, 1.0, 0.0, 0.0] True

    Batches come in the same order with the same content for the same `seed` and epoch, whatever the
    threads do; each iteration over the loader is the next epoch (`epoch` may be set).

    Args:
        graph: The graph whose edges are followed.
        features: A tensor, a unified tensor in memory or on disk, or a mapping of such by node
            type; None (default) for none.
        edges: Ids of the graph's edges, or a relation, whose edges are all taken; None (default) for
            all edges.
        batch_size: Edges of a batch, negatives not counted (default 1024).
        fan_outs: Neighbors per hop, as in `NeighborSampler` (default 15, 10, 5), or a
            `NeighborSampler`, for other kinds of sampling.
        num_neighbors: The same in PyG's form, as in `NeighborSampler`; None (default) takes
            `fan_outs`.
        pairs: Sources and targets, global ids, instead of `edges`: links that need not be edges of
            the graph; None (default) for none.
        relations: With `pairs`: the relation of each as a number, or one name for all; None
            (default) where the graph has one relation.
        labels: A row for each of the edges or pairs, from 1 on where there are negatives, which have
            0; None (default) makes true edges 1.
        times: A moment for each of the edges or pairs; None (default) takes the sampler's
            `edge_times` of the edges, where it has them.
        negatives: A `NegativeSampler` of this graph, or of one with the same nodes and relations,
            whose edges are no negatives either; None (default) for no negatives.
        num_negatives: How many for each edge (default 1).
        leaves_out: `"edge"` leaves an edge itself out of the sample of its batch, and
            `"edge_and_reverse"` also the edge that leads back; of pairs, all edges that join them.
            None (default) leaves nothing out.
        reverses: Which relation leads back, by relation; None (default) finds those that are called
            `<name>_reversed` or `rev_<name>`.
        shuffle: Whether edges come in a new order in each epoch (default False).
        seed: Of every random choice (default 0).
        replace: As in `NeighborSampler` (default False).
        resample: As in `NeighborSampler` (default True).
        drop_last: Whether a smaller last batch is left out (default False).
        prefetch: Batches made ahead in two threads; 0 makes each when it is asked for (default 2).
        cache: Memory for rows on disk that coming batches ask for again, where `features` keep none
            (default `"256MiB"`; 0 for none). It belongs to the table from then on.
        edge_data: Names of the graph's edge data whose rows batches bring for the edges of their
            blocks; None (default) for none.
        device: Where batches are wanted; None (default) leaves them on the CPU.
        progress: Whether a bar shows the progress of each epoch (default False).
    """

    @outside_graphs
    @alone_after_fork
    def __init__(
        self,
        graph: RelationalGraph,
        features: Any = None,
        edges: Any = None,
        batch_size: int = 1024,
        fan_outs: Sequence[FanOut] | NeighborSampler | None = None,
        *,
        num_neighbors: Any = None,
        pairs: tuple[Any, Any] | None = None,
        relations: Any = None,
        labels: Any = None,
        times: Any = None,
        negatives: NegativeSampler | None = None,
        num_negatives: int = 1,
        leaves_out: str | None = None,
        reverses: Mapping[Any, Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        replace: bool = False,
        resample: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
        cache: int | str = CACHE,
        edge_data: str | Sequence[str] | None = None,
        device: torch.device | str | None = None,
        progress: bool = False,
    ) -> None:
        self.graph, self._edge_columns = graph, EdgeColumns(graph, edge_data)
        self.sampler = choose_sampler(
            graph, fan_outs, num_neighbors, replace=replace, resample=resample, seed=seed
        )
        if leaves_out not in LEFT_OUT:
            raise SamplingError(
                f"leaves_out must be None, 'edge' or 'edge_and_reverse', got {leaves_out!r}."
            )
        _require_same_nodes(graph, negatives)
        links = _read_links(graph, edges, pairs, relations)
        self.links = _add_times(self.sampler, negatives, links, times)
        count = self.links.sources.shape[0]
        self._labels = None if labels is None else as_table(labels, "labels", count, "edges")
        if labels is not None and negatives is not None:
            _require_positive(labels)
        reads_back = leaves_out == "edge_and_reverse"
        back = read_reverses(graph, reverses, self.links.relations) if reads_back else None
        hidden = leaves_out is not None
        drawer = LinkDrawer(graph, self.sampler, self.links, negatives, num_negatives, hidden, back)
        super().__init__(
            FeatureRows(graph, features),
            drawer,
            count,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self.sampler.seed,
            drop_last=drop_last,
            prefetch=prefetch,
            cache=cache,
            device=device,
            progress=progress,
        )

    def _complete(self, sample: LinkSample, device: torch.device | None) -> LinkBatch:
        features, positions = self._features.gather(sample.input_nodes, self._pool, device)
        blocks = attach_graph(self.graph, sample.sample)
        inputs, pairs = sample.inputs, sample.sources.shape[0]
        if self._labels is not None:
            labels = self._labels.gather(inputs)
        else:
            labels = torch.ones(len(inputs), dtype=torch.float32, device="cpu")
        labels = torch.cat([labels, labels.new_zeros((pairs - len(inputs), *labels.shape[1:]))])
        batch = LinkBatch(
            sample.number,
            sample.sample.seeds,
            sample.sample.seed_rows,
            blocks,
            features,
            labels,
            positions,
            sample.sample.trees,
            inputs,
            GraphTypes.of(self.graph),
            self._edge_columns.gather(blocks),
            sources=sample.sources,
            targets=sample.targets,
            relations=sample.relations,
            times=sample.times,
            edges=None if self.links.edges is None else self.links.edges[inputs],
            num_positives=len(inputs),
        )
        return batch if device is None else batch.to(device)

    def __repr__(self) -> str:
        edges = self.links.sources.shape[0]
        return f"LinkLoader({self.graph!r}, {edges:,} edges in {len(self):,} batches)"


def _require_same_nodes(graph: RelationalGraph, negatives: NegativeSampler | None) -> None:
    """Raise unless numbers of nodes and relations mean the same in both graphs, which may have other edges."""
    if negatives is None or negatives.graph is graph:
        return
    other = negatives.graph
    shared = min(graph.num_relations, other.num_relations)  # inverses come after the others
    for what, is_same in (
        ("types of nodes", graph.node_types == other.node_types),
        ("numbers of nodes", graph.nodes_per_type == other.nodes_per_type),
        ("relations", graph.relations[:shared] == other.relations[:shared]),
    ):
        if not is_same:
            raise SamplingError(
                f"the negatives are of a graph with other {what} than the loader's.\n"
                "  Make the NegativeSampler of the loader's graph, or of one with the same nodes and "
                "relations."
            )


def _read_links(graph: RelationalGraph, edges: Any, pairs: Any, relations: Any) -> TrueLinks:
    if pairs is not None and edges is not None:
        raise SamplingError("links are given as edges or as pairs: pass `edges` or `pairs`.")
    if pairs is None and relations is not None:
        raise SamplingError("`relations` are those of `pairs`; edges have theirs.")
    return _read_edges(graph, edges) if pairs is None else _read_pairs(graph, pairs, relations)


def _read_edges(graph: RelationalGraph, edges: Any) -> TrueLinks:
    if isinstance(edges, str) or (isinstance(edges, tuple) and len(edges) == 3):
        number = graph.relation_number(edges)
        own = range_of_relation(graph, number)
        ids = as_plain(graph.by_relation().edges[own.start : own.stop]).long()
    elif edges is None:
        ids = torch.arange(graph.num_edges, dtype=torch.int64, device="cpu")
    else:
        ids = read_edge_ids(graph, edges, "edges")
    source, target, relation = (
        as_plain(each[ids]).long() for each in (graph.source, graph.target, graph.relation)
    )
    return TrueLinks(source, target, relation, ids, None)


def _read_pairs(graph: RelationalGraph, pairs: Any, relations: Any) -> TrueLinks:
    sources, targets = (
        read_numbers(each, name).long()
        for each, name in zip(pairs, ("sources", "targets"), strict=True)
    )
    numbers = read_relations(graph, relations, sources.shape[0]).long()
    for name, values in (("targets", targets), ("relations", numbers)):
        if values.shape[0] != sources.shape[0]:
            raise SamplingError(
                f"there are {sources.shape[0]:,} sources, but {values.shape[0]:,} {name}."
            )
    require_end(graph, "source", sources, numbers)
    require_end(graph, "target", targets, numbers)
    return TrueLinks(sources, targets, numbers, None, None)


def _add_times(
    sampler: NeighborSampler, negatives: NegativeSampler | None, links: TrueLinks, given: Any
) -> TrueLinks:
    """The same with a moment for each, where the sampler or the negatives need one."""
    is_temporal = sampler.rule.is_temporal
    needs_times = is_temporal or (negatives is not None and negatives.rule.times is not None)
    count, edge_times = links.sources.shape[0], sampler.rule.edge_times
    if given is None and edge_times is not None and links.edges is not None:
        moments = numbers_at(edge_times, links.edges).long()
    elif given is not None and not isinstance(given, str):
        moments = read_numbers(given, "times").long()
    elif given is not None:
        column = read_column(sampler.graph, given, "times", "edges")
        if links.edges is None or column is None:
            raise SamplingError(
                "pairs have no edge data: pass `times` as a tensor, one for each pair."
            )
        moments = numbers_at(column, links.edges).long()
    elif needs_times:
        raise SamplingError(
            "nodes or edges have times, the links have none: pass `times`, one for each."
        )
    else:
        return links
    if not needs_times:
        raise SamplingError(
            "the links have times, but neither the sampler nor the negatives look at them: give them "
            "node_times or edge_times."
        )
    if moments.shape[0] != count:
        raise SamplingError(f"there are {count:,} links, but {moments.shape[0]:,} times.")
    return TrueLinks(links.sources, links.targets, links.relations, links.edges, moments)


def _require_positive(labels: Any) -> None:
    values = as_plain(labels) if isinstance(labels, torch.Tensor) else None
    if values is None or values.is_floating_point():
        return
    if values.numel() and bool((values == 0).any()):
        raise SamplingError(
            "some labels are 0, which is the label of negatives: number the classes from 1 on."
        )
