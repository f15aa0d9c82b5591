"""What loaders share: the order of an epoch's seeds, and batches made ahead of the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from shorthaul.errors import SamplingError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.batch_pipeline import BatchPipeline
from shorthaul.graphs.loading.device_lane import DeviceLane
from shorthaul.graphs.loading.feature_rows import FeatureRows
from shorthaul.graphs.sampling.blocks import Block, NeighborSample
from shorthaul.graphs.sampling.fan_outs import FanOut
from shorthaul.graphs.sampling.plain import mix
from shorthaul.graphs.sampling.sampler import NeighborSampler
from shorthaul.jit.launching.device_guard import with_number
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork, kernel_threads, limited_threads
from shorthaul.settings import settings
from shorthaul.storage import NO_LIMIT_BYTES, BufferPool
from shorthaul.units import parse_bytes

# How far sampling runs ahead of gathering where a cache can use it: ids are small.
_WINDOW_BATCHES = 16
CACHE = "256MiB"  # of rows on disk that coming batches ask for again


class Sampled(Protocol):
    """What is known of a batch before its rows are gathered."""

    @property
    def input_nodes(self) -> torch.Tensor:
        """Global ids of the nodes whose features are read."""


Drawn = TypeVar("Drawn", bound=Sampled)
DrawnAnywhere = TypeVar("DrawnAnywhere", bound=Sampled, covariant=True)
Batch = TypeVar("Batch")


class Drawer(Protocol[DrawnAnywhere]):
    """Draws what belongs to some of a loader's seeds, also in a worker's process."""

    def draw(self, inputs: torch.Tensor, number: int, unique: int, threads: int) -> DrawnAnywhere:
        """Batch `number` of an epoch, for the seeds at `inputs`, with the random numbers of `unique`."""


class EpochSamples(torch.utils.data.Dataset[Drawn]):
    """The samples of one epoch, each made when it is asked for; workers may share it."""

    def __init__(
        self,
        drawer: Drawer[Drawn],
        order: torch.Tensor,
        batch_size: int,
        count: int,
        epoch: int,
    ) -> None:
        self.drawer, self.order, self.epoch = drawer, order, epoch
        self._batch_size, self._count = batch_size, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Drawn:
        if not 0 <= number < self._count:
            raise IndexError(f"there are {self._count:,} samples, numbered from 0; got {number:,}")
        return self.draw(number, 1)

    @alone_after_fork
    def draw(self, number: int, threads: int) -> Drawn:
        """Sample number `number`, drawn by that many threads."""
        start = number * self._batch_size
        inputs = self.order[start : start + self._batch_size]
        return self.drawer.draw(inputs, number, (self.epoch << 32) + number, threads)


class EpochLoader(ABC, Generic[Drawn, Batch]):
    """Iterates over batches: each iteration is the next epoch, drawn and gathered ahead."""

    sampler: NeighborSampler

    def __init__(
        self,
        features: FeatureRows,
        drawer: Drawer[Drawn],
        count: int,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        prefetch: int,
        cache: int | str,
        device: torch.device | str | None,
        progress: bool,
    ) -> None:
        self.batch_size = _read_count("batch_size", batch_size, 1)
        self.prefetch = _read_count("prefetch", prefetch, 0)
        self.shuffle, self.drop_last, self.progress = bool(shuffle), bool(drop_last), bool(progress)
        self.device = None if device is None else torch.device(device)
        if self.device is None and self.sampler.device is not None:
            raise _other_device(self.sampler.device, "the CPU")
        self.epoch = 0
        self._features, self._drawer, self._count, self._seed = features, drawer, count, seed
        self._pool = BufferPool(NO_LIMIT_BYTES, why="mini-batches")
        cache_bytes = _read_cache(cache)
        if self.prefetch:  # without batches ahead nothing is known of what will be asked for again
            features.keep_expected(cache_bytes)

    @abstractmethod
    def _complete(self, sample: Drawn, device: torch.device | None) -> Batch:
        """The batch of a sample, its rows gathered here and handed over on `device`."""

    @outside_graphs
    @alone_after_fork
    def complete(self, sample: Drawn) -> Batch:
        """The batch of a sample: features and labels of what was drawn, gathered here.

        Args:
            sample: One of `samples()`.
        """
        return self._complete(sample, self._find_device())

    def _find_device(self) -> torch.device | None:
        """Where batches are wanted: `cuda` is the current device of the thread that asks for them."""
        device = None if self.device is None else with_number(self.device)
        if self.sampler.device not in (None, device):
            raise _other_device(self.sampler.device, str(device))
        return device

    def __len__(self) -> int:
        whole, rest = divmod(self._count, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @outside_graphs
    def __iter__(self) -> Iterator[Batch]:
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

    @alone_after_fork
    def samples(self, epoch: int | None = None) -> EpochSamples[Drawn]:
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
        if self.shuffle:
            key = mix(mix(self._seed) ^ mix(number))
            generator = torch.Generator().manual_seed(key)
            order = torch.randperm(
                self._count, generator=generator, dtype=torch.int64, device="cpu"
            )
        else:
            order = torch.arange(self._count, dtype=torch.int64, device="cpu")
        return EpochSamples(self._drawer, order, self.batch_size, len(self), number)

    @outside_graphs
    def _iterate(
        self, samples: EpochSamples[Drawn], device: torch.device | None
    ) -> Iterator[Batch]:
        complete_alone = alone_after_fork(self._complete)
        if self.prefetch == 0:
            for number in range(len(samples)):
                yield complete_alone(samples.draw(number, kernel_threads()), device)
            return
        can_look_ahead = any(each.looks_ahead for each in self._features.all_tables())
        # Next to a model that uses all cores, a few threads of our own are enough.
        threads = max(1, kernel_threads() // 4)

        lane = DeviceLane(device) if device is not None and device.type == "cuda" else None
        # Samples that a device draws come on a stream of their own: gathers do not hold up the next one.
        drawn_on = self.sampler.device
        draws = None if drawn_on is None else DeviceLane(drawn_on)

        def make(sample: Any) -> Batch:
            with limited_threads(threads):
                drawn: Drawn = sample if draws is None else draws.hand_over(sample)
                return complete_alone(drawn, device)

        def complete(sample: Any) -> Any:
            return make(sample) if lane is None else lane.bring(make, sample)

        def draw_one(number: int) -> Drawn:
            sample = samples.draw(number, threads)
            if can_look_ahead:
                self._features.expect(sample.input_nodes.cpu())
            return sample

        def draw(number: int) -> Any:
            return draw_one(number) if draws is None else draws.bring(draw_one, number)

        pipeline: BatchPipeline[Any, Any] = BatchPipeline(
            len(samples),
            draw,
            complete,
            room_drawn=max(self.prefetch, _WINDOW_BATCHES if can_look_ahead else 1),
            room_batches=self.prefetch,
        )
        try:
            yield from pipeline if lane is None else map(lane.hand_over, pipeline)
        finally:
            pipeline.close()
            self._features.forget_expected()


def _other_device(drawn_on: torch.device | None, wanted_on: str) -> SamplingError:
    return SamplingError(
        f"the sampler draws on {drawn_on}, but batches are wanted on {wanted_on}.\n"
        f"  Pass the loader device={str(drawn_on)!r} too."
    )


def _read_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SamplingError(f"{name} must be a whole number from {least} on, got {value!r}.")
    return value


def _read_cache(cache: int | str) -> int:
    try:
        return parse_bytes(cache)
    except ValueError as error:
        raise SamplingError(f"cache: {error}.") from error


def choose_sampler(
    graph: RelationalGraph,
    fan_outs: Sequence[FanOut] | NeighborSampler | None,
    num_neighbors: Any,
    *,
    replace: bool,
    resample: bool,
    seed: int,
) -> NeighborSampler:
    """The sampler that was given, or the uniform one with those fan-outs."""
    if not isinstance(fan_outs, NeighborSampler):
        return NeighborSampler(
            graph,
            fan_outs,
            num_neighbors=num_neighbors,
            replace=replace,
            resample=resample,
            seed=seed,
        )
    if num_neighbors is not None:
        raise SamplingError("`num_neighbors` are those of the sampler that was given.")
    if replace or not resample:
        raise SamplingError("`replace` and `resample` are those of the sampler that was given.")
    if fan_outs.graph is not graph:
        raise SamplingError("the sampler is of another graph than the loader.")
    return fan_outs


def attach_graph(graph: RelationalGraph, sample: NeighborSample) -> list[Block]:
    """The blocks of a sample; those that came from a worker find the graph again."""
    index = graph.by_target()
    return [
        each if each.index is not None else replace(each, index=index) for each in sample.blocks
    ]
