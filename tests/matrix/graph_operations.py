"""Graphs, samplers and loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

import shorthaul as sh
from tests.matrix.operation import Operation, Run, Tensors, random_numbers, random_tensor

NODES, EDGES, RELATIONS = 30, 120, 3
FAN_OUTS = (3, 2)


def edges() -> dict[str, torch.Tensor]:
    """A graph with hubs, loops and repeated edges."""
    hubs = random_numbers(5, EDGES // 2, seed=3)
    return {
        "source": random_numbers(NODES, EDGES, seed=1),
        "target": torch.cat([hubs, random_numbers(NODES, EDGES - len(hubs), seed=2)]),
        "relation": random_numbers(RELATIONS, EDGES, seed=4),
    }


def make_graph(given: Tensors) -> sh.RelationalGraph:
    """The graph of `edges`, whatever its ids are."""
    return sh.RelationalGraph.from_edges(
        given["source"],
        given["target"],
        given["relation"],
        num_nodes=NODES,
        num_relations=RELATIONS,
    )


def _tensors_of(graph: sh.RelationalGraph) -> Tensors:
    found = {name: getattr(graph, name) for name in ("source", "target", "relation")}
    indexes: dict[str, Any] = {
        "by target": graph.by_target(),
        "by source": graph.by_source(),
        "by relation": graph.by_relation(),
        "pairs source": graph.pairs("source"),
        "pairs target": graph.pairs("target"),
    }
    for name, index in indexes.items():
        for each in fields(index):
            found[f"{name} {each.name}"] = getattr(index, each.name)
    return {
        name: (each.cpu() if isinstance(each, sh.UnifiedTensor) else each).long()
        for name, each in found.items()
    }


def _plain_graph(given: Tensors) -> Tensors:
    """Every index by stable sorting."""
    ends = {name: given[name].long() for name in ("source", "target", "relation")}
    found: dict[str, torch.Tensor] = dict(ends)
    relation = ends["relation"]
    for name, other in (("target", "source"), ("source", "target")):
        order = torch.argsort(ends[name] * RELATIONS + relation, stable=True)
        found[f"by {name} pointers"] = _pointers(ends[name], NODES)
        found[f"by {name} {other}s"] = ends[other][order]
        found[f"by {name} relations"] = relation[order]
        found[f"by {name} edges"] = order
    order = torch.argsort(relation, stable=True)
    found["by relation pointers"] = _pointers(relation, RELATIONS)
    found["by relation edges"] = order
    found["by relation sources"] = ends["source"][order]
    found["by relation targets"] = ends["target"][order]
    for name in ("source", "target"):
        keys, places = torch.unique(relation * NODES + ends[name], return_inverse=True)
        found[f"pairs {name} pointers"] = _pointers(keys // NODES, RELATIONS)
        found[f"pairs {name} nodes"] = keys % NODES
        found[f"pairs {name} edge_to_pair"] = places
        found[f"pairs {name} pair_pointers"] = _pointers(places, len(keys))
        found[f"pairs {name} pair_edges"] = torch.argsort(places, stable=True)
    return found


def _pointers(numbers: torch.Tensor, count: int) -> torch.Tensor:
    counts = torch.bincount(numbers, minlength=count)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _made(given: Tensors, _: Path) -> Run:
    return lambda: _tensors_of(make_graph(given))


def _made_of_lists(given: Tensors, _: Path) -> Run:
    lists = {name: each.tolist() for name, each in given.items()}
    return lambda: _tensors_of(make_graph(lists))  # type: ignore[arg-type]


def _saved(in_memory: bool) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        place = folder / "graph"

        def run() -> Tensors:
            indexes = ("relation", "target", "source", "pairs_source", "pairs_target")
            make_graph(given).save(place, indexes)
            return _tensors_of(sh.RelationalGraph.open(place, in_memory=in_memory))

        return run

    return prepare


def _read(given: Tensors, folder: Path) -> Run:
    path = folder / "triples.txt"
    columns = zip(*(given[name].tolist() for name in ("source", "relation", "target")), strict=True)
    path.write_text("".join(f"{one} {two} {three}\n" for one, two, three in columns))
    counts = {"num_nodes": NODES, "num_relations": RELATIONS}
    return lambda: _tensors_of(sh.RelationalGraph.read(path, "triples", **counts))


def _seeded() -> dict[str, torch.Tensor]:
    return {**edges(), "seeds": random_numbers(NODES, 8, seed=5)}


def list_blocks(blocks: Any) -> Tensors:
    """All numbers of some blocks."""
    found = {}
    for number, block in enumerate(blocks):
        for name in ("source_nodes", "pointers", "sources", "edges", "relations"):
            found[f"{number} {name}"] = getattr(block, name).long()
    return found


def _sampled(on_disk: bool) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        def run() -> Tensors:
            graph = make_graph(given)
            if on_disk:
                graph = sh.RelationalGraph.open(graph.save(folder / "graph", ["target"]))
            sampler = sh.NeighborSampler(graph, FAN_OUTS, seed=7)
            return list_blocks(sampler.sample(given["seeds"], number=3).blocks)

        return run

    return prepare


def _sampled_plainly(given: Tensors) -> Tensors:
    sampler = sh.NeighborSampler(make_graph(given), FAN_OUTS, seed=7)
    return list_blocks(sampler.sample_plainly(sampler.require_seeds(given["seeds"]), 3).blocks)


NUM_SAMPLES = [3, 2]


def _drawn_by_budgets(on_disk: bool) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        def run() -> Tensors:
            graph = make_graph(given)
            if on_disk:
                graph = sh.RelationalGraph.open(graph.save(folder / "graph", ["target"]))
            sampler = sh.graphs.HGTSampler(graph, NUM_SAMPLES, seed=7)
            return list_blocks(sampler.sample(given["seeds"], number=3).blocks)

        return run

    return prepare


def _drawn_plainly(given: Tensors) -> Tensors:
    sampler = sh.graphs.HGTSampler(make_graph(given), NUM_SAMPLES, seed=7)
    return list_blocks(sampler.sample_plainly(given["seeds"], 3).blocks)


def _featured() -> dict[str, torch.Tensor]:
    return {**_seeded(), "x": random_tensor(NODES, 5), "labels": random_numbers(4, NODES, seed=6)}


def _loaded(prefetch: int, on_disk: bool) -> Callable[[Tensors, Path], Run]:
    def prepare(given: Tensors, folder: Path) -> Run:
        def run() -> Tensors:
            x = given["x"]
            if on_disk:
                x = sh.open(sh.save_features(folder / "x.npy", x, progress=False).path)
            loader = sh.MiniBatchLoader(
                make_graph(given),
                x,
                given["labels"],
                given["seeds"],
                batch_size=3,
                fan_outs=FAN_OUTS,
                shuffle=True,
                seed=7,
                prefetch=prefetch,
            )
            found = {}
            for batch in loader:
                blocks = list_blocks(batch.blocks)
                found |= {f"batch {batch.number} {name}": each for name, each in blocks.items()}
                assert batch.features is not None
                assert batch.labels is not None
                found[f"batch {batch.number} features"] = batch.features.clone()
                found[f"batch {batch.number} labels"] = batch.labels.long().clone()
                # What was gathered belongs to the nodes that were sampled.
                assert torch.equal(batch.features, given["x"][batch.input_nodes.long()])
                assert torch.equal(batch.labels.long(), given["labels"][batch.seeds.long()].long())
            return found

        return run

    return prepare


OPERATIONS = (
    Operation("from_edges", edges, _made, _plain_graph),
    Operation("from_edges of lists", edges, _made_of_lists, _plain_graph, is_heavy=True),
    Operation("a saved graph", edges, _saved(in_memory=False), _plain_graph),
    Operation(
        "a saved graph in memory", edges, _saved(in_memory=True), _plain_graph, is_heavy=True
    ),
    Operation("a graph of triples", edges, _read, _plain_graph),
    Operation("NeighborSampler", _seeded, _sampled(on_disk=False), _sampled_plainly),
    Operation("NeighborSampler on disk", _seeded, _sampled(on_disk=True), _sampled_plainly),
    Operation("HGTSampler", _seeded, _drawn_by_budgets(on_disk=False), _drawn_plainly),
    Operation("HGTSampler on disk", _seeded, _drawn_by_budgets(on_disk=True), _drawn_plainly),
    Operation("MiniBatchLoader", _featured, _loaded(0, on_disk=False), is_exact=True),
    Operation(
        "MiniBatchLoader ahead", _featured, _loaded(2, on_disk=False), is_exact=True, is_heavy=True
    ),
    Operation("MiniBatchLoader on disk", _featured, _loaded(2, on_disk=True), is_exact=True),
)
