"""Ctrl-C at any line of reading a graph and of building its indexes arrives, and the next reading is right."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 17  # of the lines, in the quick tests
FOLDERS = ("graphs/readers/", "graphs/index/", "graphs/graph", "graphs/edge_tensors")
TEXTS = {
    "n_triples": ("x.nt.gz", "<a:Ada> <a:knows> <a:Bo> .\n<a:Bo> <a:likes> <a:Ada> .\n" * 20),
    "triples": ("x.txt", "0 1 2\n2 0 1\n3 1 4\n" * 20),
    "edge_list": ("x.csv", "0,1\n1,2\n30,4\n" * 20),
}


def interrupt_each_line(folder: Path, name: str, every: int) -> None:
    file, text = TEXTS[name]
    path = folder / file
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())

    def read() -> tuple[torch.Tensor, ...]:
        graph = RelationalGraph.read(path, name)
        indexes = (graph.by_target(), graph.by_source(), graph.by_relation(), graph.pairs("source"))
        return tuple(each for index in indexes for each in vars(index).values())

    expected = read()
    arrived = 0
    for place in find_places(read, *FOLDERS)[::every]:
        arrived += run_interrupted(read, place)
        for one, other in zip(read(), expected, strict=True):
            assert torch.equal(one, other), place
    assert arrived > 3


@pytest.mark.parametrize("name", TEXTS)
def test_some_lines(tmp_path: Path, name: str) -> None:
    interrupt_each_line(tmp_path, name, EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_each_line(tmp_path: Path, name: str) -> None:
    interrupt_each_line(tmp_path, name, 1)


def test_indexes_that_were_interrupted_are_built_by_who_asks_next(tmp_path: Path) -> None:
    source, target = torch.randint(40, (2, 300), generator=torch.Generator().manual_seed(0))

    def build(graph: RelationalGraph) -> list[torch.Tensor]:
        return [*vars(graph.by_target()).values(), *vars(graph.pairs("target")).values()]

    def make() -> RelationalGraph:
        return RelationalGraph.from_edges(source, target, num_nodes=40)

    expected = build(make())
    for place in find_places(lambda: build(make()), *FOLDERS)[::5]:
        graph = make()
        run_interrupted(lambda graph=graph: build(graph), place)  # type: ignore[misc]
        for one, other in zip(build(graph), expected, strict=True):
            assert torch.equal(one, other), place
