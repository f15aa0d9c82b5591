"""A graph whose saving is interrupted is whole or not there, and the next save works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.saving import DESCRIPTION, open_graph, save_graph
from tests.injected_interrupts import find_places, run_interrupted

EVERY = 9  # of the lines, in the quick tests


def interrupt_each_line(folder: Path, every: int) -> None:
    graph = RelationalGraph.from_edges([0, 1, 2, 3, 0], [1, 2, 3, 0, 2])
    place = folder / "graph"

    def save() -> None:
        save_graph(graph, place, progress=False)

    def is_whole() -> bool:
        opened = open_graph(place, in_memory=True)
        return torch.equal(opened.source, graph.source) and opened.num_edges == graph.num_edges

    save()
    save()  # with the indexes that were built meanwhile
    names = {each.name for each in place.iterdir()}
    arrived = 0
    for line in find_places(save, "graphs/saving")[::every]:
        arrived += run_interrupted(save, line)
        assert {each.name for each in place.iterdir()} <= names, line
        if (place / DESCRIPTION).exists():
            assert is_whole(), line
        save()
        assert is_whole(), line
        assert {each.name for each in place.iterdir()} == names, line
    assert arrived > 3


def test_some_lines(tmp_path):
    interrupt_each_line(tmp_path, EVERY)


@pytest.mark.slow
def test_each_line(tmp_path):
    interrupt_each_line(tmp_path, 1)
