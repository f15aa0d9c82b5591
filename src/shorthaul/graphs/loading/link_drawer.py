"""Edges of a batch -> their ends and those of their negatives as seeds -> blocks around them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.loading.link_batch import LinkSample
from shorthaul.graphs.sampling.candidates.edges_between import find_edges_between, find_reverses
from shorthaul.graphs.sampling.negatives.negative_sampler import NegativeSampler
from shorthaul.graphs.sampling.sampler import NeighborSampler


@dataclass(frozen=True, eq=False)
class TrueLinks:
    """The edges that a loader goes through: global ids of their ends, int64."""

    sources: torch.Tensor
    targets: torch.Tensor
    relations: torch.Tensor
    edges: torch.Tensor | None  # ids in the graph, where they were given so
    times: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class LinkDrawer:
    """Draws negatives and blocks for some of the edges, also in a worker's process."""

    graph: RelationalGraph
    sampler: NeighborSampler
    links: TrueLinks
    negatives: NegativeSampler | None
    num_negatives: int
    leaves_out_edge: bool
    reverse_of: torch.Tensor | None  # of each relation, where reverses are left out too

    def draw(self, inputs: torch.Tensor, number: int, unique: int, threads: int) -> LinkSample:
        """The sample around the edges at `inputs`."""
        links, count = self.links, len(inputs)
        source, target = links.sources[inputs], links.targets[inputs]
        relation = links.relations[inputs]
        times = None if links.times is None else links.times[inputs]
        rows = [_count_from(0, count), _count_from(count, count)]
        seeds, of_positive = [source, target], [rows[0], rows[0]]
        if self.negatives is not None:
            drawn = self.negatives.sample(
                source,
                target,
                relation,
                count=self.num_negatives,
                times=times if self.negatives.rule.times is not None else None,
                number=unique,
                threads=threads,
            )
            of = rows[0].repeat_interleave(self.num_negatives)
            for end, new in enumerate((drawn.sources.flatten(), drawn.targets.flatten())):
                # What a negative shares with its positive is one seed: in trees, one tree.
                is_new = new != seeds[end][of]
                places = rows[end][of]
                places[is_new] = _count_from(sum(map(len, seeds)), int(is_new.sum()))
                rows[end] = torch.cat([rows[end], places])
                seeds.append(new[is_new].long())
                of_positive.append(of[is_new])
            relation = torch.cat([relation, relation[of]])
            of_pair = torch.cat([_count_from(0, count), of])
        else:
            of_pair = rows[0]
        sample = self.sampler.sample(
            torch.cat(seeds),
            times=times[torch.cat(of_positive)]
            if times is not None and self.sampler.rule.is_temporal
            else None,
            exclude=self._left_out(inputs),
            number=unique,
            threads=threads,
        )
        return LinkSample(
            replace(sample, number=number, inputs=inputs),
            sample.seed_rows[rows[0]],
            sample.seed_rows[rows[1]],
            relation,
            None if times is None else times[of_pair],
            inputs,
        )

    def _left_out(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """The ids of the edges themselves, and of their reverses, where they are not to be seen."""
        if not self.leaves_out_edge:
            return None
        links, reverse_of = self.links, self.reverse_of
        if links.edges is not None:
            own = links.edges[inputs]
            if reverse_of is None:
                return own
            return torch.cat([own, find_reverses(self.graph, own, reverse_of)])
        ends = links.sources[inputs], links.targets[inputs], links.relations[inputs]
        found = find_edges_between(self.graph, *ends)[1]
        if reverse_of is None:
            return found
        source, target, relation = ends
        others = find_edges_between(self.graph, target, source, reverse_of[relation])[1]
        return torch.cat([found, others])


def _count_from(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device="cpu")
