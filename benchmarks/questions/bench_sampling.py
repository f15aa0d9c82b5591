"""How fast are neighbors sampled on ogbn-arxiv, against DGL's and PyG's samplers?

Batches of 1,024 training nodes, fan-outs 15, 10, 5 from the seeds outwards, without replacement. DGL
draws anew for every layer, PyG lets a node keep the neighbors that it got first: each is compared with
the same way of ours. DGL's sampler runs by itself, without a loader; PyG's too, and once in its
`NeighborLoader` with two workers. Times are per batch, blocks relabeled and ready for a model. The
random numbers differ, so what is compared is the mean number of nodes and edges, within two per cent.

A full run takes about three minutes.
"""

from __future__ import annotations

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm
from benchmarks.peers.arxiv import load_arxiv, shuffled_batches
from benchmarks.peers.process import PEERS_FOLDER, ArmProcess
from shorthaul.graphs import NeighborSampler, RelationalGraph

SIZE, COUNT, FAN_OUTS = 1024, 16, [15, 10, 5]
PEERS = PEERS_FOLDER / "peer_arms_sampling.py"


def ours(graph: RelationalGraph, batches: list[torch.Tensor], name: str, *, resample: bool) -> Arm:
    sampler = NeighborSampler(graph, FAN_OUTS, resample=resample)

    def run() -> dict[str, float]:
        nodes = edges = 0
        for seeds in batches:
            sample = sampler.sample(seeds)
            nodes += len(sample.input_nodes)
            # Without resampling the first block holds the edges of all the others.
            blocks = sample.blocks if resample else sample.blocks[:1]
            edges += sum(each.num_edges for each in blocks)
        return {"nodes": nodes / len(batches), "edges": edges / len(batches)}

    return Arm(name, run, events=len(batches))


def same_sizes(expected: object, got: object) -> str:
    """Samples of different random numbers have about the same size."""
    assert isinstance(expected, dict)
    assert isinstance(got, dict)
    for key, count in expected.items():
        if abs(got[key] / count - 1) > 0.02:
            return f"{key}: expected about {count:.0f}, got {got[key]:.0f}"
    return ""


def measure(answer: Answer) -> None:
    data = load_arxiv()
    graph = RelationalGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
    graph.by_target()
    count = 4 if answer.is_quick else COUNT
    batches = shuffled_batches(data.train, SIZE, 0)[:count]
    asked = {
        "fan_outs": FAN_OUTS,
        "size": SIZE,
        "count": count,
        "threads": torch.get_num_threads(),
    }
    answer.state(
        graph="ogbn-arxiv, 169,343 nodes, 2,332,486 edges (both directions)",
        batch=f"{SIZE:,} seeds, fan-outs {FAN_OUTS}",
    )
    with ArmProcess(PEERS) as dgl, ArmProcess(PEERS) as pyg:
        answer.compare(
            "every layer draws anew",
            [
                dgl.arm("dgl", name="DGL NeighborSampler", events=count, **asked),
                ours(graph, batches, "shorthaul", resample=True),
            ],
            baseline="DGL NeighborSampler",
            same=same_sizes,
        )
        answer.compare(
            "nodes keep their neighbors",
            [
                pyg.arm("pyg", name="PyG NeighborSampler", events=count, **asked),
                pyg.arm(
                    "pyg", name="PyG NeighborLoader, 2 workers", events=count, workers=2, **asked
                ),
                ours(graph, batches, "shorthaul", resample=False),
            ],
            baseline="PyG NeighborSampler",
            same=same_sizes,
        )


if __name__ == "__main__":
    answer_question(measure)
