"""`MiniBatchLoader`: sampling and gathering while the model trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from shorthaul.errors import SamplingError
from shorthaul.graphs.edge_tensors import read_numbers
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.batch_pipeline import BatchPipeline
from shorthaul.graphs.loading.feature_rows import FeatureRows, as_table, looks_ahead
from shorthaul.graphs.loading.mini_batch import MiniBatch
from shorthaul.graphs.sampling.blocks import NeighborSample
from shorthaul.graphs.sampling.fan_outs import FanOut
from shorthaul.graphs.sampling.plain import mix
from shorthaul.graphs.sampling.sampler import NeighborSampler
from shorthaul.jit.launching.device_guard import with_number
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import kernel_threads, limited_threads
from shorthaul.settings import settings
from shorthaul.storage import NO_LIMIT_BYTES, BufferPool
from shorthaul.tensors.tables.table import RowTable

# How far sampling runs ahead of gathering where a cache can use it: ids are small.
_WINDOW_BATCHES = 16


class MiniBatchLoader:
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
        fan_outs: Neighbors per hop, as in `NeighborSampler` (default 15, 10, 5).
        shuffle: Whether seeds come in a new order in each epoch (default False).
        seed: Of every random choice (default 0).
        replace: As in `NeighborSampler` (default False).
        resample: As in `NeighborSampler` (default True).
        drop_last: Whether a smaller last batch is left out (default False).
        prefetch: Batches made ahead in two threads; 0 makes each when it is asked for (default 2).
        device: Where batches are wanted; None (default) leaves them on the CPU.
        progress: Whether a bar shows the progress of each epoch (default False).
    """

    @outside_graphs
    def __init__(
        self,
        graph: RelationalGraph,
        features: Any = None,
        labels: Any = None,
        seeds: Any = None,
        batch_size: int = 1024,
        fan_outs: Sequence[FanOut] = (15, 10, 5),
        *,
        shuffle: bool = False,
        seed: int = 0,
        replace: bool = False,
        resample: bool = True,
        drop_last: bool = False,
        prefetch: int = 2,
        device: torch.device | str | None = None,
        progress: bool = False,
    ) -> None:
        self.graph = graph
        self.batch_size = _read_count("batch_size", batch_size, 1)
        self.prefetch = _read_count("prefetch", prefetch, 0)
        self.shuffle, self.drop_last, self.progress = bool(shuffle), bool(drop_last), bool(progress)
        self.device = None if device is None else torch.device(device)
        self.epoch = 0
        self.sampler = NeighborSampler(
            graph, fan_outs, replace=replace, resample=resample, seed=seed
        )
        self.seeds = _read_seeds(graph, seeds)
        self.sampler.require_seeds(self.seeds)
        self._features = FeatureRows(graph, features)
        self._labels, self._label_offset = _read_labels(graph, labels, self.seeds)
        self._pool = BufferPool(NO_LIMIT_BYTES, why="mini-batches")

    def __len__(self) -> int:
        whole, rest = divmod(self.seeds.shape[0], self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @outside_graphs
    def __iter__(self) -> Iterator[MiniBatch]:
        samples, device = self.samples(), self._find_device()
        self.epoch += 1
        if not self.progress:
            return self._iterate(samples, device)
        console = Console(stderr=True, force_terminal=True if settings.progress == "on" else None)
        is_shown = settings.progress != "off" and console.is_terminal
        return iter(
            track(
                self._iterate(samples, device),
                f"epoch {samples.epoch}",
                total=len(samples),
                console=console,
                transient=True,
                disable=not is_shown,
            )
        )

    def samples(self, epoch: int | None = None) -> EpochSamples:
        """The samples of an epoch as a data set, for a `DataLoader` whose workers send ids only.

        >>> import torch
        >>> from shorthaul.graphs import MiniBatchLoader, RelationalGraph
        >>> graph = RelationalGraph.from_edges([1, 2], [0, 0])
        >>> loader = MiniBatchLoader(graph, torch.eye(3), batch_size=2, fan_outs=[-1])
        >>> workers = torch.utils.data.DataLoader(loader.samples(), batch_size=None, num_workers=0)
        >>> [loader.complete(sample).features.shape for sample in workers]
        [torch.Size([3, 3]), torch.Size([1, 3])]
        """
        number = self.epoch if epoch is None else epoch
        order = self.seeds
        if self.shuffle:
            key = mix(mix(self.sampler.seed) ^ mix(number))
            generator = torch.Generator().manual_seed(key)
            order = order[
                torch.randperm(order.shape[0], generator=generator, dtype=torch.int64, device="cpu")
            ]
        return EpochSamples(self.sampler, order, self.batch_size, len(self), number)

    @outside_graphs
    def complete(self, sample: NeighborSample) -> MiniBatch:
        """The batch of a sample: features of its input nodes and labels of its seeds, gathered here."""
        return self._complete(sample, self._find_device())

    def _find_device(self) -> torch.device | None:
        """Where batches are wanted: `cuda` is the current device of the thread that asks for them."""
        return None if self.device is None else with_number(self.device)

    def _complete(self, sample: NeighborSample, device: torch.device | None) -> MiniBatch:
        index = self.graph.by_target()
        blocks = [
            each if each.index is not None else replace(each, index=index) for each in sample.blocks
        ]
        features, positions = self._features.gather(sample.input_nodes, self._pool, device)
        labels = None
        if self._labels is not None:
            labels = self._labels.gather(sample.seeds - self._label_offset)
        batch = MiniBatch(
            sample.number, sample.seeds, sample.seed_rows, blocks, features, labels, positions
        )
        return batch if device is None else batch.to(device)

    @outside_graphs
    def _iterate(self, samples: EpochSamples, device: torch.device | None) -> Iterator[MiniBatch]:
        if self.prefetch == 0:
            for number in range(len(samples)):
                yield self._complete(samples.draw(number, kernel_threads()), device)
            return
        can_look_ahead = any(map(looks_ahead, self._features.all_tables()))
        # Next to a model that uses all cores, a few threads of our own are enough.
        threads = max(1, kernel_threads() // 4)

        def complete(sample: NeighborSample) -> MiniBatch:
            with limited_threads(threads):
                return self._complete(sample, device)

        def draw(number: int) -> NeighborSample:
            sample = samples.draw(number, threads)
            if can_look_ahead:
                self._features.expect(sample.input_nodes)
            return sample

        pipeline = BatchPipeline(
            len(samples),
            draw,
            complete,
            room_drawn=max(self.prefetch, _WINDOW_BATCHES if can_look_ahead else 1),
            room_batches=self.prefetch,
        )
        try:
            yield from pipeline
        finally:
            pipeline.close()
            self._features.forget_expected()

    def __repr__(self) -> str:
        return f"MiniBatchLoader({self.graph!r}, {self.seeds.shape[0]:,} seeds in {len(self):,} batches)"


class EpochSamples(torch.utils.data.Dataset[NeighborSample]):
    """The samples of one epoch, each made when it is asked for; workers may share it."""

    def __init__(
        self,
        sampler: NeighborSampler,
        seeds: torch.Tensor,
        batch_size: int,
        count: int,
        epoch: int,
    ) -> None:
        self.sampler, self.seeds, self.epoch = sampler, seeds, epoch
        self._batch_size, self._count = batch_size, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> NeighborSample:
        if not 0 <= number < self._count:
            raise IndexError(f"there are {self._count:,} samples, numbered from 0; got {number:,}")
        return self.draw(number, 1)

    def draw(self, number: int, threads: int) -> NeighborSample:
        """Sample number `number`, drawn by that many threads."""
        start = number * self._batch_size
        seeds = self.seeds[start : start + self._batch_size]
        unique = (self.epoch << 32) + number
        return replace(self.sampler.sample(seeds, number=unique, threads=threads), number=number)


def _read_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SamplingError(f"{name} must be a whole number from {least} on, got {value!r}.")
    return value


def _read_seeds(graph: RelationalGraph, seeds: Any) -> torch.Tensor:
    if seeds is None:
        return torch.arange(graph.num_nodes, dtype=graph.index_dtype, device="cpu")
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        of_type = graph.nodes_of(seeds[0])
        ids = read_numbers(seeds[1], "seeds")
        wrong = ((ids < 0) | (ids >= len(of_type))).nonzero()
        if wrong.numel():
            raise SamplingError(
                f"seed {int(ids[wrong[0, 0]]):,} at position {int(wrong[0, 0]):,} is no node: there "
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
