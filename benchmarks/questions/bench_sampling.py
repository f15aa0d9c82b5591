"""How fast are neighbors sampled on ogbn-arxiv, against DGL's and PyG's samplers?

Batches of 1,024 training nodes, fan-outs 15, 10, 5 from the seeds outwards, without replacement. DGL
draws anew for every layer, PyG lets a node keep the neighbors that it got first: each is compared with
the same way of ours. DGL's sampler runs by itself, without a loader; PyG's too, and once in its
`NeighborLoader` with two workers. Times are per batch, blocks relabeled and ready for a model. The
random numbers differ, so what is compared is the mean number of nodes and edges, within two per cent.

Then with times of nodes, with weights of edges, and negative edges: one for each edge, none of them an
edge. PyG needs `pyg-lib` for the first two, else a row says that it did not run, and why is told below the
table; `torch-sparse` by itself has an operator for times, which draws from all neighbors and drops those
that are too late, so that its samples are smaller. Edges per second count the edges that came out.

A full run takes about ten minutes.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, Measurable, not_compared
from benchmarks.peers.arxiv import draw_times, draw_weights, load_arxiv, shuffled_batches
from benchmarks.peers.process import PEERS_FOLDER, ArmProcess, PeerError
from shorthaul.graphs import NegativeSampler, NeighborSampler, RelationalGraph

SIZE, COUNT, FAN_OUTS = 1024, 16, [15, 10, 5]
PEERS = PEERS_FOLDER / "peer_arms_sampling.py"


def ours(
    graph: RelationalGraph,
    batches: list[torch.Tensor],
    name: str,
    *,
    resample: bool,
    **options: Any,
) -> Arm:
    sampler = NeighborSampler(graph, FAN_OUTS, resample=resample, **options)

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


def count_edges(result: object) -> float:
    assert isinstance(result, dict)
    return float(result["edges"])


def compare_others(
    answer: Answer, case: str, pyg: ArmProcess, wanted: dict[str, str], arm: Arm, asked: Any
) -> None:
    """Our arm beside those of PyG that run; `wanted` has their keys by their names."""
    if not answer.wants(case):
        return
    arms: list[Measurable] = []
    edges = {arm.name: count_edges(arm.result())}
    missing: dict[str, str] = {}
    for name, key in wanted.items():
        try:
            theirs = pyg.arm(key, name=name, events=arm.events, **asked)
            edges[name] = count_edges(theirs.result())
            arms.append(theirs)
        except PeerError as error:
            missing[name] = str(error).strip().splitlines()[-1]
    arms.append(arm)
    baseline = arms[0].name
    answer.compare(case, arms, baseline=baseline, same=not_compared)
    for row in answer.rows[-len(arms) :]:
        each = edges[row["arm"]]
        row["figures"] |= {"edges_per_second": each / row["wall_seconds"]["median"]}
    for name, why in missing.items():
        answer.leave_out(case, name, baseline)
        answer.state(**{f"{name} did not run": why})


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
        compare_others(
            answer,
            "times of nodes",
            pyg,
            {"PyG NeighborLoader, times": "temporal", "torch-sparse, times": "dropping"},
            ours(graph, batches, "shorthaul", resample=False, node_times=draw_times(data)),
            asked,
        )
        compare_others(
            answer,
            "weights of edges",
            pyg,
            {"PyG NeighborLoader, weights": "weighted"},
            ours(
                graph,
                batches,
                "shorthaul",
                resample=False,
                strategy="weighted",
                weights=draw_weights(data),
            ),
            asked,
        )
        negatives, every = NegativeSampler(graph), torch.arange(graph.num_edges)

        def draw_negatives() -> dict[str, float]:
            return {"edges": float(negatives.sample_edges(every).targets.numel())}

        compare_others(
            answer,
            "one negative for each edge",
            pyg,
            {"PyG structured_negative_sampling": "negatives"},
            Arm("shorthaul", draw_negatives),
            {"threads": asked["threads"]},
        )


if __name__ == "__main__":
    answer_question(measure)
