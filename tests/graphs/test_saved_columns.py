"""The numbers of a saved graph's files: only those that the graph has come out of them."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from shorthaul.errors import EdgeRangeError, GraphFileError
from shorthaul.graphs import NeighborSampler, RelationalGraph
from shorthaul.graphs.edge_tensors import as_plain
from shorthaul.graphs.interop.pyg import local_edges
from shorthaul.settings import settings

INDEXES = ("relation", "target", "source", "pairs_source", "pairs_target")
NODES, RELATIONS, EDGES = 40, 3, 300
PAIRS = {"pairs_source": "U", "pairs_target": "U"}


def some_graph() -> RelationalGraph:
    generator = torch.Generator().manual_seed(3)
    source, target = torch.randint(0, NODES, (2, EDGES), generator=generator)
    relation = torch.randint(0, RELATIONS, (EDGES,), generator=generator)
    names = [f"node {number}" for number in range(NODES)]
    return RelationalGraph.from_edges(source, target, relation, node_names=names)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return some_graph().save(tmp_path_factory.mktemp("saved") / "graph", INDEXES)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(saved, tmp_path / "graph")


def overwrite(path: Path, position: int, value: int) -> None:
    """One number of a .npy file."""
    array = np.load(path, mmap_mode="r+")
    array[position] = value
    array.flush()


def forget_checksums(folder: Path) -> None:
    """As in a folder whose checksums fit the damage."""
    path = folder / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checksums": {}}))


def read_everything(graph: RelationalGraph) -> None:
    """Every number that the folder holds."""
    for name in ("source", "target", "relation"):
        as_plain(getattr(graph, name))
    for index in (graph.by_relation(), graph.by_target(), graph.by_source()):
        for column in vars(index).values():
            as_plain(column)
    for side in ("source", "target"):
        for column in vars(graph.pairs(side)).values():
            as_plain(column)
    list(graph.node_names or ())


COLUMNS = [
    *(f"{name}.npy" for name in ("source", "target", "relation")),
    *(f"by_target.{name}.npy" for name in ("pointers", "sources", "relations", "edges")),
    *(f"by_source.{name}.npy" for name in ("pointers", "targets", "relations", "edges")),
    *(f"by_relation.{name}.npy" for name in ("pointers", "edges", "sources", "targets")),
    *(
        f"{end}.{name}.npy"
        for end in ("pairs_source", "pairs_target")
        for name in ("pointers", "nodes", "edge_to_pair", "pair_pointers", "pair_edges")
    ),
    "node_names.offsets.npy",
]


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("value", [-1, 2**31 - 1])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_number_that_the_graph_does_not_have(folder, column, value, in_memory) -> None:
    forget_checksums(folder)
    overwrite(folder / column, 2, value)
    with pytest.raises(GraphFileError, match=column.replace(".", r"\.")) as raised:
        read_everything(RelationalGraph.open(folder, in_memory=in_memory))
    assert f"number 2 is {value:,}, but there are" in str(raised.value)
    assert "save the graph again" in str(raised.value)


@pytest.mark.parametrize("column", [each for each in COLUMNS if "pointers" in each])
@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_that_do_not_ascend_or_do_not_hold_everything(folder, column, in_memory) -> None:
    forget_checksums(folder)
    for position, value, message in (
        (0, 1, "number 0 must be 0 and is 1"),
        (-1, 5, r"do not ascend|number [\d,]+ must be [\d,]+ and is 5"),
        (1, 41, "numbers 1 and 2 do not ascend"),
    ):
        before = int(np.load(folder / column)[position])
        if (position, value) == (1, 41):
            value = int(np.load(folder / column)[2]) + 1
        overwrite(folder / column, position, value)
        with pytest.raises(GraphFileError, match=message):
            read_everything(RelationalGraph.open(folder, in_memory=in_memory))
        overwrite(folder / column, position, before)
    read_everything(RelationalGraph.open(folder, in_memory=in_memory))


@pytest.mark.parametrize("column", [each for each in COLUMNS if "edges" in each])
def test_an_edge_that_is_there_twice(folder, column) -> None:
    forget_checksums(folder)
    one, other = np.load(folder / column)[:2]
    overwrite(folder / column, 0, other)
    with pytest.raises(GraphFileError, match=f"each of them once, but {one} is not among them"):
        read_everything(RelationalGraph.open(folder))


@pytest.mark.parametrize("column", [*COLUMNS, "node_names.text.npy"])
def test_a_number_that_could_be_right_has_another_checksum(folder, column) -> None:
    found = np.load(folder / column)
    position = next(at for at in range(1, len(found)) if found[at] != found[at - 1])
    overwrite(folder / column, position, int(found[position - 1]))
    with pytest.raises(GraphFileError, match=column.replace(".", r"\.")):
        RelationalGraph.open(folder, in_memory=True)


def test_a_folder_that_was_saved_without_checksums_is_read(folder) -> None:
    forget_checksums(folder)
    opened = RelationalGraph.open(folder, in_memory=True)
    assert torch.equal(opened.source, some_graph().source)


@pytest.mark.parametrize("uses_kernels", [True, False])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sources", NODES),
        ("sources", -1),
        ("sources", 2**31 - 1),
        ("pointers", 2**31 - 1),
        ("pointers", -5),
        ("pointers", EDGES),
        ("relations", RELATIONS),
        ("relations", -(2**31)),
    ],
)
def test_a_sampler_that_reads_such_a_graph_from_disk(folder, column, value, uses_kernels) -> None:
    overwrite(folder / f"by_target.{column}.npy", 7, value)
    fans = [dict.fromkeys(range(RELATIONS), 3)] * 2 if column == "relations" else [-1, -1]
    sampler = NeighborSampler(RelationalGraph.open(folder), fans)
    without = {} if uses_kernels else {"kernels": "torch"}
    with settings.override(**without), pytest.raises(GraphFileError, match=rf"{column}\.npy"):
        sampler.sample(torch.arange(NODES))


def test_what_a_block_looks_up(folder) -> None:
    overwrite(folder / "by_target.edges.npy", 0, EDGES)
    overwrite(folder / "by_target.relations.npy", 0, -1)
    sample = NeighborSampler(RelationalGraph.open(folder), [-1]).sample(torch.arange(NODES))
    with pytest.raises(
        GraphFileError, match=r"number 0 is 300, but there are 300 edges \(0 to 299\)"
    ):
        sample.blocks[0].edges  # noqa: B018
    with pytest.raises(GraphFileError, match="number 0 is -1, but there are 3 relations"):
        sample.blocks[0].relations  # noqa: B018


def test_an_edge_of_another_type_than_its_relation(tmp_path) -> None:
    edges = {
        ("author", "writes", "paper"): torch.tensor([[0, 1], [2, 2]]),
        ("paper", "cites", "paper"): torch.tensor([[0], [1]]),
    }
    RelationalGraph.from_typed_edges(edges, {"author": 2, "paper": 3}).save(tmp_path, ["relation"])
    forget_checksums(tmp_path)
    overwrite(tmp_path / "source.npy", 0, 4)
    overwrite(tmp_path / "by_relation.sources.npy", 0, 4)
    with pytest.raises(
        ValueError, match="edge 0 is a `author writes paper`, but its source is node 4"
    ):
        RelationalGraph.open(tmp_path, in_memory=True)
    with pytest.raises(EdgeRangeError, match=r"edge 0 is 4, but there are 2 nodes of `author`"):
        local_edges(RelationalGraph.open(tmp_path))


def test_columns_are_checked_however_they_are_read(folder) -> None:
    overwrite(folder / "by_target.sources.npy", 9, NODES)
    sources = RelationalGraph.open(folder).by_target().sources
    assert sources[:9].cpu().tolist() == some_graph().by_target().sources[:9].tolist()
    again = pickle.loads(pickle.dumps(sources))
    out = torch.empty(2, dtype=sources.dtype)
    wanted = torch.tensor([-1, 9])
    for read in (
        lambda: sources[wanted],
        lambda: sources[9:10].cpu(),
        lambda: sources.gather(wanted, out=out),
        lambda: sources.prefetch(wanted).wait(),
        lambda: again[wanted],
        lambda: list(sources.chunks(5)),
        lambda: sources.cpu(),
    ):
        with pytest.raises(
            GraphFileError, match=r"number 9 is 40, but there are 40 nodes \(0 to 39\)"
        ):
            read()


def test_a_file_that_changes_after_it_was_opened(folder) -> None:
    opened = RelationalGraph.open(folder)
    sampler = NeighborSampler(opened, [-1])
    sampler.sample(torch.arange(NODES))
    overwrite(folder / "by_target.sources.npy", 0, 2**31 - 1)
    os.sync()
    with pytest.raises(GraphFileError, match="number 0 is 2,147,483,647"):
        sampler.sample(torch.arange(NODES))
