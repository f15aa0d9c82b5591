"""`MiniBatchLoader`: sampling and gathering while the model trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from shorthaul.errors import SamplingError
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.edge_columns import EdgeColumns
from shorthaul.graphs.loading.epochs import CACHE, EpochLoader, attach_graph, choose_sampler
from shorthaul.graphs.loading.feature_rows import FeatureRows, as_table, gather_beside
from shorthaul.graphs.loading.mini_batch import MiniBatch
from shorthaul.graphs.loading.typed_batch import GraphTypes
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.graphs.sampling.candidates.rules import read_seed_times
from shorthaul.graphs.sampling.fan_outs import FanOut
from shorthaul.graphs.sampling.sampler import NeighborSampler
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors.tables.table import RowTable


@dataclass(frozen=True, eq=False)
class SeedDrawer:
    """Draws the blocks around some of the seeds."""

    sampler: NeighborSampler
    seeds: torch.Tensor
    times: torch.Tensor | None

    def draw(self, inputs: torch.Tensor, number: int, unique: int, threads: int) -> NeighborSample:
        """The sample around the seeds at `inputs`."""
        times = None if self.times is None else self.times[inputs]
        sample = self.sampler.sample(
            self.seeds[inputs], times=times, number=unique, threads=threads
        )
        return replace(sample, number=number, inputs=inputs)


class MiniBatchLoader(EpochLoader[NeighborSample, MiniBatch]):
    """Iterates over mini-batches: neighbors sampled, features and labels gathered, both ahead.

    >>> import torch
    >>> from shorthaul.graphs import MiniBatchLoader, RelationalGraph
    >>> graph = RelationalGraph.from_edges([1, 2, 3, 0], [0, 0, 1, 2])
    >>> features, labels = torch.randn(4, 8), torch.tensor([0, 1, 1, 0])
    >>> loader = MiniBatchLoader(graph, features, labels, batch_size=3, fan_outs=[2, 2])
    >>> for batch in loader:
    ...     print(batch, tuple(batch.features.shape), batch.labels.tolist())
    MiniBatch(0: 3 seeds, 4 input nodes) (4, 8) [0, 1, 1]
    MiniBatch(1: 1 seeds, 1 input nodes) (1, 8) [0]

    Batches come in the same order with the same content for the same `seed` and epoch, whatever the
    threads do; each iteration over the loader is the next epoch (`epoch` may be set).

    Args:
        graph: The graph.
        features: A tensor, a unified tensor in memory or on disk, or a mapping of such by node
            type; None (default) for none.
        labels: An entry for each node, or a mapping of one node type to such; None (default) for
            none.
        seeds: Global ids, or a node type with ids within it; None (default) for all nodes.
        batch_size: Seeds of a batch (default 1024).
        fan_outs: Neighbors per hop, as in `NeighborSampler` (default 15, 10, 5), or a
            `NeighborSampler`, for other kinds of sampling, and for samples that a GPU draws.
        num_neighbors: The same in PyG's form, as in `NeighborSampler`; None (default) takes
            `fan_outs`.
        times: The moments of the seeds, one for each, where the sampler has times; None (default)
            takes those of their nodes.
        seed_labels: An entry for each of `seeds`, instead of `labels`; None (default) for none.
        shuffle: Whether seeds come in a new order in each epoch (default False).
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
        labels: Any = None,
        seeds: Any = None,
        batch_size: int = 1024,
        fan_outs: Sequence[FanOut] | NeighborSampler | None = None,
        *,
        num_neighbors: Any = None,
        times: Any = None,
        seed_labels: Any = None,
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
        self.seeds = _read_seeds(graph, seeds)
        self.sampler.require_seeds(self.seeds)
        moments = read_seed_times(self.sampler.rule, self.seeds, times)
        if labels is not None and seed_labels is not None:
            raise SamplingError(
                "labels are those of nodes or of seeds: pass `labels` or `seed_labels`."
            )
        self._labels, self._label_offset = _read_labels(graph, labels, self.seeds)
        self._seed_labels: RowTable | None = None
        if seed_labels is not None:
            count = self.seeds.shape[0]
            self._seed_labels = as_table(seed_labels, "seed_labels", count, "seeds")
        super().__init__(
            FeatureRows(graph, features),
            SeedDrawer(self.sampler, self.seeds, moments),
            self.seeds.shape[0],
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self.sampler.seed,
            drop_last=drop_last,
            prefetch=prefetch,
            cache=cache,
            device=device,
            progress=progress,
        )

    def _complete(self, sample: NeighborSample, device: torch.device | None) -> MiniBatch:
        blocks = attach_graph(self.graph, sample)
        features, positions = self._features.gather(sample.input_nodes, self._pool, device)
        labels = None
        if self._labels is not None:
            labels = gather_beside(self._labels, sample.seeds - self._label_offset)
        if self._seed_labels is not None and sample.inputs is not None:
            labels = self._seed_labels.gather(sample.inputs)
        batch = MiniBatch(
            sample.number,
            sample.seeds,
            sample.seed_rows,
            blocks,
            features,
            labels,
            positions,
            sample.trees,
            sample.inputs,
            GraphTypes.of(self.graph),
            self._edge_columns.gather(blocks),
        )
        return batch if device is None else batch.to(device)

    def __repr__(self) -> str:
        return f"MiniBatchLoader({self.graph!r}, {self.seeds.shape[0]:,} seeds in {len(self):,} batches)"


def _read_seeds(graph: RelationalGraph, seeds: Any) -> torch.Tensor:
    if seeds is None:
        return torch.arange(graph.num_nodes, dtype=graph.index_dtype, device="cpu")
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        of_type = graph.nodes_of(seeds[0])
        ids = read_numbers(seeds[1], "seeds")
        wrong = ((ids < 0) | (ids >= len(of_type))).nonzero()
        if wrong.numel():
            raise SamplingError(
                f"seed {int(ids[wrong[0, 0]]):,} at position {int(wrong[0, 0]):,} is not a node: there "
                f"are {len(of_type):,} of type `{seeds[0]}`, numbered from 0."
            )
        return ids + of_type.start
    return read_numbers(seeds, "seeds")


def _read_labels(
    graph: RelationalGraph, labels: Any, seeds: torch.Tensor
) -> tuple[RowTable | None, int]:
    """The table of labels, and the node that its first row belongs to."""
    if labels is None:
        return None, 0
    if not isinstance(labels, Mapping):
        return as_table(labels, "labels", graph.num_nodes), 0
    if len(labels) != 1:
        raise SamplingError(
            f"labels must be those of one node type, the seeds'; got {', '.join(labels) or 'none'}."
        )
    ((name, values),) = labels.items()
    of_type = graph.nodes_of(name)
    if bool(((seeds < of_type.start) | (seeds >= of_type.stop)).any()):
        raise SamplingError(f"labels are those of type `{name}`, but some seeds are not of it.")
    return as_table(values, f"labels[{name!r}]", len(of_type)), of_type.start
