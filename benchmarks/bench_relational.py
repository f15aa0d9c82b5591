"""How fast are compiled relational layers, against PyG's and DGL's?

One layer 64 -> 64 on graphs with inverse relations, float32, indexes built before, as a layer in a loop
has them: inference, and a training step (forward, and backward to the input and all parameters). Every
arm has the same parameters; outputs and input gradients agree. DGL's HGT is another formula than PyG's
(no biases, no GELU): it is compared with that formula, written in the language.

Peers that cannot run here are left out, with what they ask for: PyG's `FastRGCNConv` and `RGATConv` make
a 64 x 64 matrix for every edge, its `HGTConv` a row per node and relation, and over half a minute for one
training step on the smallest graph; DGL's training steps on FB15k-237 take minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.answer import Answer, answer_question
from benchmarks.measure import Arm
from benchmarks.peers import ArmProcess
from benchmarks.relational_graphs import NAMES, load_graph, save_edges
from shorthaul.graphs import RelationalGraph
from shorthaul.relational import (
    HGTConv,
    NodeFeature,
    RGATConv,
    RGCNConv,
    Weight,
    dot,
    layer,
    linear,
    sigmoid,
    softmax,
)

PEERS = Path(__file__).with_name("peer_arms_relational.py")
MEMORY_BYTES = 6 * 2**30  # what a peer may ask for in one tensor and its gradient
SLOW_EDGES = 500_000  # above, peers that loop over relations in training take minutes


@layer
def dgl_hgt(
    g,
    x: NodeFeature(64),
    k: Weight("node_type", 64, 64),
    q: Weight("node_type", 64, 64),
    v: Weight("node_type", 64, 64),
    a: Weight("node_type", 64, 64),
    agree: Weight("relation", "heads", "dim", "dim"),
    tell: Weight("relation", "heads", "dim", "dim"),
    prior: Weight("relation", "heads", 1),
    skip: Weight("node_type", 1),
    *,
    heads,
    dim,
):
    """HGT as DGL computes it."""
    for n in g.nodes():
        n.key = linear(n.x, k[n.type]).reshape(heads, dim)
        n.query = linear(n.x, q[n.type]).reshape(heads, dim)
        n.value = linear(n.x, v[n.type]).reshape(heads, dim)
    for e in g.edges():
        score = dot(linear(e.source.key, agree[e.relation]), e.target.query)
        e.alpha = softmax(score * prior[e.relation] / dim**0.5)
        e.told = linear(e.source.value, tell[e.relation])
    for n in g.target_nodes():
        for e in n.incoming_edges():
            n.heard += e.alpha * e.told
        share = sigmoid(skip[n.type].values())
        n.out = linear(n.heard.reshape(-1), a[n.type]) * share + n.x * (1.0 - share)
    return n.out


def same_tensors(expected: object, got: object) -> str:
    """Outputs and gradients agree as sums of float32 in another order do."""
    assert isinstance(expected, list)
    assert isinstance(got, list)
    for one, other in zip(expected, got, strict=True):
        limit = 1e-3 * float(one.abs().max()) + 1e-5
        if not torch.allclose(one, other, rtol=1e-3, atol=limit):
            return f"largest difference {float((one - other).abs().max()):.3g}, limit {limit:.3g}"
    return ""


def run(
    call: Callable[[torch.Tensor], torch.Tensor], module: Any, x: torch.Tensor, training: bool
) -> Any:
    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(x)]

    def step() -> list[torch.Tensor]:
        source = x.clone().requires_grad_()
        module.zero_grad()
        out = call(source)
        out.backward(torch.ones_like(out))
        assert source.grad is not None
        return [out.detach(), source.grad]

    return step if training else infer


def compare_layer(
    answer: Answer,
    case: str,
    peers: list[tuple[str, str, dict[str, Any]]],
    call: Callable[[torch.Tensor], torch.Tensor],
    module: Any,
    saved: dict[str, Any],
    folder: Path,
    training: bool,
) -> None:
    if not answer.wants(case) or not peers:
        return
    state = folder / "state.pt"
    torch.save(saved, state)
    asked = {
        "edges": str(folder / "edges.pt"),
        "state": str(state),
        "training": training,
        "threads": torch.get_num_threads(),
    }
    ours = Arm("shorthaul", run(call, module, saved["x"], training))
    with ArmProcess(PEERS) as process:
        arms = [process.arm(key, name=name, **more, **asked) for name, key, more in peers]
        answer.compare(case, [*arms, ours], baseline=arms[0].name, same=same_tensors)


def measure_graph(answer: Answer, name: str, graph: RelationalGraph, folder: Path) -> None:
    save_edges(graph, folder / "edges.pt")
    torch.manual_seed(0)
    x = torch.randn(graph.num_nodes, 64)
    relations, edges = graph.num_relations, graph.num_edges
    fits_per_edge = edges * 64 * 64 * 4 * 2 < MEMORY_BYTES
    fits_per_relation = relations * graph.num_nodes * 64 * 4 * 4 < MEMORY_BYTES
    is_slow = edges > SLOW_EDGES
    rgcn, rgat = RGCNConv(64, 64, relations), RGATConv(64, 64, relations)
    types = [("node", str(number), "node") for number in range(relations)]
    typed = RelationalGraph.from_edges(
        graph.source,
        graph.target,
        graph.relation,
        relations=types,
        num_nodes=graph.num_nodes,
    )
    for training in (False, True):
        kind = "training" if training else "inference"
        saved = {"x": x, "out": 64, "heads": 1, "parameters": rgcn.state_dict()}
        peers: list[tuple[str, str, dict[str, Any]]] = [
            ("PyG RGCNConv", "pyg", {"layer": "RGCNConv"})
        ]
        if fits_per_edge:
            peers.append(("PyG FastRGCNConv", "pyg", {"layer": "FastRGCNConv"}))
        if not (training and is_slow):
            peers.append(("DGL RelGraphConv", "dgl_rgcn", {}))
        compare_layer(
            answer,
            f"RGCN, {name}, {kind}",
            peers,
            lambda x: rgcn(x, graph),
            rgcn,
            saved,
            folder,
            training,
        )
        saved = {"x": x, "out": 64, "heads": 1, "parameters": rgat.state_dict()}
        peers = [("PyG RGATConv", "pyg", {"layer": "RGATConv"})] if fits_per_edge else []
        compare_layer(
            answer,
            f"RGAT, {name}, {kind}",
            peers,
            lambda x: rgat(x, graph),
            rgat,
            saved,
            folder,
            training,
        )
        hgt = HGTConv(64, 64, (["node"], types), 4)
        saved = {"x": x, "heads": 4, "parameters": hgt.state_dict()}
        # One training step of PyG's HGT takes over half a minute on the smallest graph.
        has_peer = fits_per_relation and not training
        peers = [("PyG HGTConv", "pyg", {"layer": "HGTConv"})] if has_peer else []
        compare_layer(
            answer,
            f"HGT 4 heads, {name}, {kind}",
            peers,
            lambda x, hgt=hgt: hgt({"node": x}, typed)["node"],  # type: ignore[misc]
            hgt,
            saved,
            folder,
            training,
        )
        other = dgl_hgt(relations=relations, heads=4, dim=16)
        torch.nn.init.ones_(other.prior)
        saved = {"x": x, "heads": 4, "parameters": other.state_dict()}
        peers = [] if training and is_slow else [("DGL HGTConv", "dgl_hgt", {})]
        compare_layer(
            answer,
            f"DGL's HGT 4 heads, {name}, {kind}",
            peers,
            lambda x, other=other: other(graph, x),  # type: ignore[misc]
            other,
            saved,
            folder,
            training,
        )


def measure(answer: Answer) -> None:
    answer.state(
        layer="64 -> 64, float32, inverse relations included",
        left_out="PyG FastRGCNConv, RGATConv where edges x 64 x 64 floats and their gradient pass 6 GiB; "
        "PyG HGTConv where relations x nodes x 64 floats four times do; DGL training on graphs of more "
        "than 500,000 edges; PyG HGTConv in training; torch.compile",
    )
    with tempfile.TemporaryDirectory() as directory:
        for name in NAMES[:1] if answer.is_quick else NAMES:
            measure_graph(answer, name, load_graph(name), Path(directory))


if __name__ == "__main__":
    answer_question(measure, rounds=3)
