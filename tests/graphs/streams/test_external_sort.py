"""Indexes sorted out of memory: the same numbers as in memory, whatever the memory is."""

import tempfile
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shorthaul.errors import GraphFileError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.streams import external_sort
from shorthaul.graphs.streams.column_file import ColumnFile
from shorthaul.graphs.streams.external_sort import NUMBERS_PER_EDGE, ORDERS, sort_to_files
from shorthaul.storage import open_engine
from tests.graphs.drawn_graphs import Edges, edge_lists


def require_sorted(graph: RelationalGraph, index: str, most_edges: int) -> None:
    """The files of `index` hold what the index in memory does, and their checksums are right."""
    size = graph.index_dtype.itemsize
    with tempfile.TemporaryDirectory() as folder, open_engine() as engine:
        sums = sort_to_files(
            graph,
            index,
            Path(folder),
            engine,
            memory_bytes=most_edges * NUMBERS_PER_EDGE * size,
            progress=False,
        )
        expected = vars(getattr(graph, f"by_{index}")())
        assert {each.name for each in Path(folder).iterdir()} == {
            f"by_{index}.{name}.npy" for name in expected
        }
        for name, values in expected.items():
            found = np.load(f"{folder}/by_{index}.{name}.npy")
            assert torch.equal(torch.from_numpy(found), values), name
            assert sums[f"by_{index}.{name}"] == zlib.crc32(found.data), name


@settings(max_examples=40, deadline=None)
@given(edge_lists(), st.sampled_from([*ORDERS]), st.integers(1, 50), st.booleans())
def test_drawn_graphs_are_sorted_as_in_memory(
    edges: Edges, index: str, most_edges: int, is_long: bool
) -> None:
    require_sorted(edges.graph(torch.int64 if is_long else None), index, most_edges)


@pytest.mark.parametrize("relations", [1, 5])
@pytest.mark.parametrize("index", [*ORDERS])
def test_a_large_graph_with_a_hub_is_sorted_as_in_memory(index: str, relations: int) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, 9_000, (2, 200_000), generator=generator)
    target[::3] = 4321  # more edges than a bucket holds
    relation = torch.randint(0, relations, (200_000,), generator=generator)
    graph = RelationalGraph.from_edges(source, target, relation, num_nodes=9_500)
    require_sorted(graph, index, most_edges=10_000)


def test_blocks_with_too_many_edges_are_cut_until_they_fit() -> None:
    target = torch.tensor([5] * 40 + [6] * 40 + [900] * 3)
    graph = RelationalGraph.from_edges(torch.arange(83), target, num_nodes=1000)
    with mock.patch.object(external_sort, "_MOST_BLOCKS", 2):
        require_sorted(graph, "target", most_edges=41)


def test_files_that_change_meanwhile_reach_no_kernel(tmp_path: Path) -> None:
    graph = RelationalGraph.from_edges([0, 1, 2], [2, 1, 0])
    read = ColumnFile.read

    def damage(column: ColumnFile, start: int, stop: int) -> torch.Tensor:
        values = read(column, start, stop)
        return values + 2**30 if column.path.name == "by_target.keys.npy" else values

    with (
        open_engine() as engine,
        mock.patch.object(ColumnFile, "read", damage),
        pytest.raises(GraphFileError, match="changed while its edges were sorted"),
    ):
        sort_to_files(graph, "target", tmp_path, engine, memory_bytes=2**20, progress=False)
    assert [*tmp_path.iterdir()] == []
