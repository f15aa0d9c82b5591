"""Classify the entities of a knowledge graph with R-GCN, as in its paper.

    python examples/knowledge_graph/classify_entities.py ../shared/data/aifb
    python examples/knowledge_graph/classify_entities.py ../shared/data/mutag --bases 30 --weight-decay 5e-4

The folder holds the benchmark as it is handed out: triples (`*.nt.gz`), and who is to be told
(`trainingSet.tsv`, `testSet.tsv`). Nodes have no features, only numbers: the first layer's weights
are a table with a row per relation and node. Two layers, sixteen hidden numbers, fifty steps.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shorthaul.graphs import RelationalGraph
from shorthaul.relational import RGCNConv

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Entities:
    """A graph, and the classes of some of its nodes."""

    graph: RelationalGraph  # every relation also backwards
    classes: list[str]
    train: tuple[torch.Tensor, torch.Tensor]  # nodes and their classes
    test: tuple[torch.Tensor, torch.Tensor]


def read_entities(folder: Path) -> Entities:
    """The benchmark in `folder`."""
    files = sorted([*folder.glob("*.nt.gz"), *folder.glob("*.nt")])
    if not files:
        raise SystemExit(f"{folder} has no triples (*.nt or *.nt.gz)")
    graph = RelationalGraph.read(files[0])
    parts = [read_labels(folder / f"{part}Set.tsv") for part in ("training", "test")]
    classes = sorted({label for part in parts for _, label in part})
    numbers = {name: number for number, name in enumerate(graph.node_names or ())}
    # An entity that no triple mentions cannot be told apart from any other.
    known = [[(name, label) for name, label in part if name in numbers] for part in parts]
    train, test = (
        (
            torch.tensor([numbers[name] for name, _ in part]),
            torch.tensor([classes.index(label) for _, label in part]),
        )
        for part in known
    )
    return Entities(graph.with_inverses(), classes, train, test)


def read_labels(path: Path) -> list[tuple[str, str]]:
    """Entities and their classes: the columns that are no number, and that begin with `label`."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    label = next(name for name in rows[0] if name.startswith("label"))
    entity = next(name for name in rows[0] if name not in ("id", label))
    return [(row[entity], row[label]) for row in rows]


class RGCN(nn.Module):
    """Two relational convolutions; the first one reads its rows by the nodes' numbers."""

    def __init__(self, entities: Entities, hidden: int, bases: int | None) -> None:
        super().__init__()
        graph = entities.graph
        self.first = RGCNConv(graph.num_nodes, hidden, graph.num_relations, bases)
        self.second = RGCNConv(hidden, len(entities.classes), graph.num_relations, bases)

    def forward(self, graph: RelationalGraph) -> torch.Tensor:
        """Scores of each class, for each node."""
        return self.second(self.first(None, graph).relu(), graph)


def train(
    model: RGCN, entities: Entities, epochs: int, weight_decay: float, progress: Progress
) -> float:
    """Train on the whole graph; the accuracy on the test nodes afterwards."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=weight_decay, fused=True)
    nodes, classes = entities.train
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(entities.graph)[nodes], classes)
        loss.backward()
        optimizer.step()
        progress(epoch, loss.item())
    nodes, classes = entities.test
    with torch.no_grad():
        told = model(entities.graph)[nodes].argmax(1)
    return float((told == classes).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="triples and sets, such as ../shared/data/aifb")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1, help="how many trainings")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--bases", type=int, default=None, help="share weights between relations")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    options = parser.parse_args()
    entities = read_entities(options.folder)
    print(
        f"{entities.graph}: {len(entities.train[0])} nodes to learn from, "
        f"{len(entities.test[0])} to tell, {len(entities.classes)} classes"
    )

    def say(epoch: int, loss: float) -> None:
        if epoch % 10 == 0 or epoch + 1 == options.epochs:
            print(f"  step {epoch:3}   loss {loss:.4f}", flush=True)

    accuracies = []
    started = time.perf_counter()
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        model = RGCN(entities, options.hidden, options.bases)
        accuracies.append(train(model, entities, options.epochs, options.weight_decay, say))
        print(f"seed {seed}: {accuracies[-1]:.1%} of the test nodes are right")
    seconds = time.perf_counter() - started
    mean = sum(accuracies) / len(accuracies)
    print(
        f"accuracy {mean:.1%} ({min(accuracies):.1%} to {max(accuracies):.1%}) over "
        f"{options.seeds} trainings of {options.epochs} steps, {seconds:.1f} s in all"
    )


if __name__ == "__main__":
    main()
