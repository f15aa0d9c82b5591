"""PyG's sampler interface over `HGTSampler`: what an `HGTLoader` draws, drawn by generated C++.

This module needs `torch_geometric` (`pip install 'shorthaul[pyg]'`).
"""

from __future__ import annotations

from typing import Any

import torch

from shorthaul.errors import MissingExtraError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.interop.typed_output import require_distinct, sort_edges, sort_nodes
from shorthaul.graphs.sampling.budgets.hgt_sampler import HGTSampler

try:
    from torch_geometric import sampler as pyg
except ImportError as error:
    raise MissingExtraError("torch_geometric", "pyg", "a sampler for PyG's loaders") from error


def is_hgt_sampler(sampler: Any) -> bool:
    """Whether it is PyG's."""
    return isinstance(sampler, pyg.HGTSampler)


class PyGHGTSampler(pyg.BaseSampler):  # type: ignore[misc]
    """Draws what a `torch_geometric.sampler.HGTSampler` would, by ours.

    Random numbers follow `torch.manual_seed`, also in the workers of a `DataLoader`.
    """

    def __init__(self, theirs: Any, data: Any) -> None:
        self.sampler = HGTSampler(RelationalGraph.from_pyg(data), theirs.num_samples)

    @property
    def edge_permutation(self) -> None:
        """None: the ids of sampled edges are those of the user's edges."""
        return

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """The subgraph around nodes, as PyG's loaders take it."""
        graph = self.sampler.graph
        seeds = inputs.node.long() + graph.nodes_of(inputs.input_type).start
        number = int(torch.randint(2**62, (1,), dtype=torch.int64, device="cpu"))
        sample = self.sampler.sample(seeds, number=number)
        require_distinct(sample, seeds, "Give each node once.")
        out = pyg.HeteroSamplerOutput({}, {}, {}, {}, None)
        out.metadata = (inputs.input_id, inputs.time)
        (block,) = sample.blocks
        of_types, local = sort_nodes(graph, block.source_nodes.long())
        out.node = {kind: nodes for kind, (nodes, _) in of_types.items()}
        row, col = block.edge_index()
        for key, (is_own, ids) in sort_edges(graph, block.edges.long(), block.relations).items():
            out.row[key], out.col[key], out.edge[key] = local[row[is_own]], local[col[is_own]], ids
        return out

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
        """Not there, as it is not in PyG's."""
        raise NotImplementedError("an HGTLoader samples from nodes")

    def __repr__(self) -> str:
        return f"PyGHGTSampler({self.sampler!r})"
