"""Does R-GCN on AIFB and MUTAG reach its published accuracy, with the curve that PyG has?

Two layers of sixteen numbers, fifty steps of Adam on the whole graph with inverse relations, ten seeds;
bases and weight decay as published. Both sides start from the same parameters, and every step's loss
must agree. Time is that of one step, after the graph is indexed.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms.relational_graphs import DATA
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm
from benchmarks.peers.process import PEERS_FOLDER, ArmProcess

PEERS = PEERS_FOLDER / "peer_arms_entities.py"
SEEDS, EPOCHS, HIDDEN, TIMED_EPOCHS = 10, 50, 16, 5
# name -> bases, weight decay, published accuracy
TASKS = {"aifb": (None, 0.0, 0.9583), "mutag": (30, 5e-4, 0.7323)}
TOLERANCE = 0.02  # of a loss, after fifty steps of sums in another order


def load_example() -> Any:
    """The example that this asks about: `examples/knowledge_graph/classify_entities.py`."""
    path = Path(__file__).parents[2] / "examples" / "knowledge_graph" / "classify_entities.py"
    found = importlib.util.spec_from_file_location("classify_entities", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["classify_entities"] = module
    found.loader.exec_module(module)
    return module


EXAMPLE = load_example()


def save_task(entities: Any, bases: int | None, path: Path) -> None:
    graph = entities.graph
    task = {
        "edge_index": torch.stack([graph.source, graph.target]).long(),
        "edge_type": graph.relation.long(),
        "num_nodes": graph.num_nodes,
        "num_relations": graph.num_relations,
        "num_classes": len(entities.classes),
        "hidden": HIDDEN,
        "bases": bases,
        "train": entities.train,
        "test": entities.test,
    }
    torch.save(task, path)


def train(entities: Any, bases: int | None, state: Path, epochs: int, decay: float) -> Any:
    model = EXAMPLE.RGCN(entities, HIDDEN, bases)
    model.load_state_dict(torch.load(state))
    losses: list[float] = []
    accuracy = EXAMPLE.train(model, entities, epochs, decay, lambda _, loss: losses.append(loss))
    return {"losses": torch.tensor(losses), "accuracy": torch.tensor(accuracy)}


def same_curve(expected: object, got: object) -> str:
    """Every step's loss agrees."""
    assert isinstance(expected, dict)
    assert isinstance(got, dict)
    difference = find_difference(expected["losses"], got["losses"])
    return "" if difference <= TOLERANCE else f"losses differ by {difference:.3g}"


def find_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, as a share of the first loss."""
    return float(((one - other).abs() / one[0]).max())


def describe(accuracies: list[float], difference: float, published: float) -> dict[str, float]:
    found = torch.tensor(accuracies, dtype=torch.float64)
    return {
        "accuracy_share": float(found.mean()),
        "deviation_share": float(found.std(correction=0)),
        "lowest_share": float(found.min()),
        "highest_share": float(found.max()),
        "published_share": published,
        "curve_difference_share": difference,
    }


def measure_task(answer: Answer, name: str, seeds: int, epochs: int, folder: Path) -> None:
    bases, decay, published = TASKS[name]
    entities = EXAMPLE.read_entities(DATA / name)
    task = folder / f"{name}.pt"
    save_task(entities, bases, task)
    accuracies: dict[str, list[float]] = {"PyG FastRGCNConv": [], "shorthaul": []}
    difference = 0.0
    asked = {"task": str(task), "weight_decay": decay, "threads": torch.get_num_threads()}
    with ArmProcess(PEERS) as process:
        for seed in range(seeds):
            torch.manual_seed(seed)
            state = folder / f"{name}_{seed}.pt"
            torch.save(EXAMPLE.RGCN(entities, HIDDEN, bases).state_dict(), state)
            ours = train(entities, bases, state, epochs, decay)
            theirs: Any = process.arm("pyg", state=str(state), epochs=epochs, **asked).result()
            accuracies["PyG FastRGCNConv"].append(float(theirs["accuracy"]))
            accuracies["shorthaul"].append(float(ours["accuracy"]))
            difference = max(difference, find_difference(theirs["losses"], ours["losses"]))
            print(
                f"{name} seed {seed}: PyG {float(theirs['accuracy']):.1%}, "
                f"ours {float(ours['accuracy']):.1%}, curves differ by {difference:.2g} at most",
                file=sys.stderr,
            )
            if difference > TOLERANCE:
                raise SystemExit(f"{name}, seed {seed}: the curves part by {difference:.3g}")
        state = folder / f"{name}_0.pt"
        peer = process.arm(
            "pyg",
            name="PyG FastRGCNConv",
            events=TIMED_EPOCHS,
            state=str(state),
            epochs=TIMED_EPOCHS,
            **asked,
        )
        ours_arm = Arm(
            "shorthaul",
            lambda: train(entities, bases, state, TIMED_EPOCHS, decay),
            events=TIMED_EPOCHS,
        )
        figures = {arm: describe(found, difference, published) for arm, found in accuracies.items()}
        answer.compare(
            f"{name}, one step",
            [peer, ours_arm],
            baseline=peer.name,
            same=same_curve,
            figures=figures,
        )


def measure(answer: Answer) -> None:
    seeds, epochs = (2, 10) if answer.is_quick else (SEEDS, EPOCHS)
    answer.state(
        model="R-GCN, two layers, 16 hidden, nodes by number, inverse relations",
        training=f"{epochs} steps of Adam at 0.01, {seeds} seeds, the same parameters on both sides",
    )
    with tempfile.TemporaryDirectory() as directory:
        for name in TASKS:
            if answer.wants(name):
                measure_task(answer, name, seeds, epochs, Path(directory))


if __name__ == "__main__":
    answer_question(measure, rounds=2)
