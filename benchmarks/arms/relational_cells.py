"""The cells of the relational benchmarks: a layer on a graph, in inference or training, and its peers.

A cell's rows are one per peer and one for us. The baseline is the peer that was fastest when every arm
was tried out; a peer that does not fit in memory, or takes longer than `LIMIT_SECONDS`, has a row that
says so. A call of more than `SECOND_SECONDS` is timed once, after one that warms up; one of more than
`FIRST_SECONDS` is timed as it is.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.arms.relational_graphs import load_graph, name_types, save_edges
from benchmarks.measuring.answer import Answer
from benchmarks.measuring.measure import Arm, Sample, not_compared
from benchmarks.peers.process import (
    PEERS_FOLDER,
    ArmProcess,
    PeerError,
    PeerTimeoutError,
    ProcessArm,
)
from benchmarks.rendering.relational_rows import KINDS, OURS, summarize
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

PEERS = PEERS_FOLDER / "peer_arms_relational.py"
MEMORY_BYTES = 14 * 2**30  # what a peer may have; the script holds it to that
SECOND_SECONDS, FIRST_SECONDS, LIMIT_SECONDS = 3.0, 10.0, 100.0

Call = Callable[[torch.Tensor], torch.Tensor]


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
        share = sigmoid(skip[n.type])
        n.out = linear(n.heard.reshape(-1), a[n.type]) * share + n.x * (1.0 - share)
    return n.out


@dataclass(frozen=True)
class Peer:
    """A peer's arm: how the peers' script calls it, and the bytes that it cannot do without."""

    name: str
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inference_bytes: int = 0
    training_bytes: int = 0

    def needs_bytes(self, training: bool) -> int:
        """What its largest tensors take."""
        return self.training_bytes if training else self.inference_bytes


@dataclass(frozen=True)
class Cell:
    """A layer on a graph: our call, and the peers that do the same."""

    layer: str
    module: nn.Module
    call: Call
    peers: Sequence[Peer]
    is_model: bool = False  # trained end to end, with a loss and an optimizer


@dataclass
class TriedArm:
    """A peer's arm that was called once or twice; a slow one answers with what that took."""

    name: str
    arm: ProcessArm
    seconds: float
    only: Sample | None

    @property
    def can_repeat(self) -> bool:
        """Whether calls may be repeated to fill a sample."""
        return self.only is None

    def sample(self, calls: int) -> Sample:
        """Run `calls` times, or say again what the only call took."""
        return self.arm.sample(calls) if self.only is None else self.only

    def result(self) -> object:
        """Nothing: what it made was compared when it was tried out."""
        return None


class LeftOutError(Exception):
    """A peer has no time in this cell."""

    def __init__(self, **figures: float) -> None:
        super().__init__(str(figures))
        self.figures = figures


class PeerProcess:
    """The peers' process; it is started again after an arm that did not come back."""

    def __init__(self, graph: RelationalGraph) -> None:
        ends = torch.stack([graph.source[:], graph.target[:]]).long()
        self._most_edges = max(int(torch.bincount(each).max()) for each in ends)
        self._process: ArmProcess | None = None
        self._tried: list[tuple[TriedArm, Peer, dict[str, Any]]] = []

    def begin_case(self) -> None:
        """Forget the arms of the case before."""
        self._tried = []

    def try_out(
        self, peer: Peer, asked: dict[str, Any], expected: Sequence[torch.Tensor]
    ) -> TriedArm:
        """An arm that made what we make; `LeftOutError` where it cannot."""
        if peer.needs_bytes(asked["training"]) > MEMORY_BYTES:
            raise LeftOutError(needs_bytes=peer.needs_bytes(asked["training"]))
        try:
            arm = self._make(peer, asked)
            made, first = arm.try_out()
            difference = describe_difference(expected, made, self._most_edges)
            if difference:
                print(f"{peer.name} makes something else: {difference}", file=sys.stderr)
                raise LeftOutError(unequal=1)
            del made
            last = first if first.wall_seconds > FIRST_SECONDS else arm.sample(1)
        except PeerError as error:
            raise self._explain(error) from error
        only = last if last.wall_seconds > SECOND_SECONDS else None
        tried = TriedArm(peer.name, arm, last.wall_seconds, only)
        self._tried.append((tried, peer, asked))
        return tried

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _make(self, peer: Peer, asked: dict[str, Any]) -> ProcessArm:
        if self._process is None:
            self._process = ArmProcess(PEERS, reply_seconds=LIMIT_SECONDS)
        return self._process.arm(peer.key, name=peer.name, **peer.options, **asked)

    def _explain(self, error: PeerError) -> LeftOutError:
        needed = re.search(r"MemoryError: needs (\d+) bytes", str(error))
        if needed:
            return LeftOutError(needs_bytes=int(needed[1]))
        print(error, file=sys.stderr)
        if isinstance(error, PeerTimeoutError) or "ended with status" in str(error):
            self.close()
            for tried, peer, asked in self._tried:
                tried.arm = self._make(peer, asked)
        if isinstance(error, PeerTimeoutError):
            return LeftOutError(over_seconds=LIMIT_SECONDS)
        return LeftOutError(failed=1)


def describe_difference(
    expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor], most_edges: int = 0
) -> str:
    """Empty where outputs and gradients agree as sums of float32 in another order do: a sum over the
    edges of a hub, one after the other, may be off by half a unit in the last place for each.
    """
    share = max(1e-3, most_edges * 2.0**-24)
    for one, other in zip(expected, got, strict=True):
        limit = share * float(one.abs().max()) + 1e-5
        if not torch.allclose(one, other, rtol=share, atol=limit):
            return f"largest difference {float((one - other).abs().max()):.3g}, limit {limit:.3g}"
    return ""


def make_run(cell: Cell, x: torch.Tensor, training: bool) -> Callable[[], list[torch.Tensor]]:
    """What the peers' script does, with our layer."""
    labels = torch.arange(len(x)) % 16
    optimizer = torch.optim.SGD(cell.module.parameters(), lr=0.01)

    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [cell.call(x)]

    def step() -> list[torch.Tensor]:
        source = x.clone().requires_grad_()
        cell.module.zero_grad()
        out = cell.call(source)
        out.backward(torch.ones_like(out))
        assert source.grad is not None
        return [out.detach(), source.grad]

    def train() -> list[torch.Tensor]:
        optimizer.zero_grad()
        out = cell.call(x)
        nn.functional.cross_entropy(out, labels).backward()
        optimizer.step()
        return [out.detach()]

    if not training:
        return infer
    return train if cell.is_model else step


def list_cells(graph: RelationalGraph) -> Iterator[Cell]:
    """Every layer on `graph`, with its peers."""
    relations = graph.num_relations
    per_edge = graph.num_edges * 64 * 64 * 4  # a matrix for every edge
    gathers = {"inference_bytes": per_edge, "training_bytes": 2 * per_edge}

    def pyg(name: str, layer: str, needs: Mapping[str, int], **options: Any) -> Peer:
        return Peer(name, "pyg", {"layer": layer, **options}, **needs)

    rgcn = RGCNConv(64, 64, relations)
    yield Cell(
        "RGCN",
        rgcn,
        lambda x: rgcn(x, graph),
        [
            Peer("DGL RelGraphConv", "dgl_rgcn"),
            pyg("PyG RGCNConv", "RGCNConv", {}),
            # Compiled, the gather is part of the product, as long as no gradient asks for it.
            pyg(
                "PyG FastRGCNConv, torch.compile",
                "FastRGCNConv",
                {"training_bytes": per_edge},
                is_compiled=True,
            ),
            pyg("PyG FastRGCNConv", "FastRGCNConv", gathers),
        ],
    )
    for heads in (1, 4):
        yield make_rgat_cell(graph, heads, gathers)
    typed = name_types(graph)
    for heads in (1, 4):
        yield make_hgt_cell(typed, heads)
    for heads in (1, 4):
        yield make_dgl_hgt_cell(graph, heads)
    layers = nn.ModuleList([RGCNConv(64, 64, relations), RGCNConv(64, 16, relations)])
    yield Cell(
        "RGCN two layers",
        layers,
        lambda x: layers[1](layers[0](x, graph).relu(), graph),
        [Peer("DGL RelGraphConv", "dgl_model"), Peer("PyG RGCNConv", "pyg_model")],
        is_model=True,
    )


def make_rgat_cell(graph: RelationalGraph, heads: int, gathers: Mapping[str, int]) -> Cell:
    """RGAT against PyG's; DGL has no such layer."""
    rgat = RGATConv(64, 64 // heads, graph.num_relations, heads=heads)
    options = {"layer": "RGATConv", "heads": heads}
    return Cell(
        f"RGAT {_heads(heads)}",
        rgat,
        lambda x: rgat(x, graph),
        [
            Peer("PyG RGATConv", "pyg", options, **gathers),
            Peer("PyG RGATConv, torch.compile", "pyg", {**options, "is_compiled": True}, **gathers),
        ],
    )


def make_hgt_cell(typed: RelationalGraph, heads: int) -> Cell:
    """HGT against PyG's, which has keys and values of every source node and relation, before and after
    their maps, and in training their gradients and a copy of one for every relation.
    """
    types = list(typed.node_types)
    hgt = HGTConv(64, 64, (types, [tuple(each) for each in typed.relations]), heads)
    nodes = dict(zip(types, typed.nodes_per_type, strict=True))
    rows = sum(nodes[each.source_type] for each in typed.relations)

    def call(x: torch.Tensor) -> torch.Tensor:
        made = hgt(dict(zip(types, x.split(list(nodes.values())), strict=True)), typed)
        return torch.cat([made[each] for each in types])

    needs = {"inference_bytes": 4 * rows * 256, "training_bytes": 9 * rows * 256}
    return Cell(
        f"HGT {_heads(heads)}",
        hgt,
        call,
        [Peer("PyG HGTConv", "pyg_hgt", {"heads": heads}, **needs)],
    )


def make_dgl_hgt_cell(graph: RelationalGraph, heads: int) -> Cell:
    """HGT as DGL writes it, against DGL's."""
    module = dgl_hgt(
        relations=graph.num_relations,
        node_types=len(graph.node_types),
        heads=heads,
        dim=64 // heads,
    )
    nn.init.ones_(module.prior)
    return Cell(
        f"DGL's HGT {_heads(heads)}",
        module,
        lambda x: module(graph, x),
        [Peer("DGL HGTConv", "dgl_hgt", {"heads": heads})],
    )


def _heads(heads: int) -> str:
    return "1 head" if heads == 1 else f"{heads} heads"


def measure_cell(
    answer: Answer, case: str, cell: Cell, x: torch.Tensor, peers: PeerProcess, folder: Path
) -> None:
    """Try every arm out, then measure those that can be."""
    training = case.endswith(KINDS[1])
    state = folder / "state.pt"
    torch.save({"parameters": cell.module.state_dict()}, state)
    asked = {
        "edges": str(next(folder.glob("edges_*.pt"))),
        "state": str(state),
        "training": training,
        "threads": torch.get_num_threads(),
    }
    run = make_run(cell, x, training)
    expected = run()
    peers.begin_case()
    tried: list[TriedArm] = []
    left_out: dict[str, dict[str, float]] = {}
    for peer in cell.peers:
        try:
            tried.append(peers.try_out(peer, asked, expected))
        except LeftOutError as error:
            left_out[peer.name] = error.figures
    del expected
    best = min(tried, key=lambda each: each.seconds).name if tried else OURS
    answer.compare(case, [*tried, Arm(OURS, run)], baseline=best, same=not_compared)
    single = {each.name for each in tried if each.only is not None}
    for row in answer.rows:
        if row["case"] == case and row["arm"] in single:
            row["rounds"] = 1
    for name, figures in left_out.items():
        answer.leave_out(case, name, best, **figures)


def measure_graphs(answer: Answer, names: Sequence[str]) -> None:
    """All cells of these graphs, and their means; of the first graph alone in a rehearsal."""
    state_conditions(answer)
    for name in names[:1] if answer.is_quick else names:
        measure_graph(answer, name)
    answer.rows += summarize(answer.rows)


def measure_graph(answer: Answer, name: str) -> None:
    """All cells of one graph; one process serves the peers."""
    graph = load_graph(name)
    torch.manual_seed(0)
    x = torch.randn(graph.num_nodes, 64)
    peers = PeerProcess(graph)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        save_edges(name_types(graph), x, folder / f"edges_{name}.pt")
        try:
            for cell in list_cells(graph):
                for kind in KINDS:
                    case = f"{cell.layer}, {name}, {kind}"
                    if answer.wants(case):
                        started = time.perf_counter()
                        measure_cell(answer, case, cell, x, peers, folder)
                        took = time.perf_counter() - started
                        print(f"{case}: measured in {took:.0f} s", file=sys.stderr)
        finally:
            peers.close()


def state_conditions(answer: Answer) -> None:
    """What all relational cells have in common."""
    answer.state(
        layer="64 -> 64, float32, inverse relations included, indexes built before",
        model="64 -> 64 -> 16 with ReLU, cross entropy and SGD",
        baseline="the fastest peer of the cell when all were tried out",
        slow_peers=f"a call of over {SECOND_SECONDS:g} s is timed once, warmed up by one call; over "
        f"{FIRST_SECONDS:g} s not warmed up; given up after {LIMIT_SECONDS:g} s",
        memory="a peer may have 14 GiB; `needs` is what it held and asked for when that was not enough, "
        "or what its largest tensors take",
        left_out="PyG HGTConv and RGCNConv under torch.compile, which takes minutes to compile them and "
        "makes them slower; DGL has no RGAT",
    )
