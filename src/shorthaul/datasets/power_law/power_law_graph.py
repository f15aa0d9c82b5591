"""`write_power_law_graph`: a graph, its features, labels and seeds, streamed to disk at any size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from shorthaul.datasets.power_law.drawing import (
    Recipe,
    draw_edges,
    draw_labels,
    draw_rows,
)
from shorthaul.dtypes import parse_dtype
from shorthaul.errors import GraphError, GraphFileError
from shorthaul.graphs import add_indexes, write_graph
from shorthaul.graphs.edge_tensors import require_count
from shorthaul.graphs.saving import read_description
from shorthaul.graphs.streams.write_graph import MEMORY
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.jit.runtime import alone_after_fork
from shorthaul.tensors import save_features
from shorthaul.tensors.files.formats import NPY_DTYPES
from shorthaul.whole_file import whole_file

DESCRIPTION = "power_law.json"
FORMAT = 1
_CHUNK_EDGES = 2**20
_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class PowerLawGraph:
    """Where `write_power_law_graph` wrote what."""

    folder: Path  # of everything
    graph: Path  # the saved graph's folder, for `RelationalGraph.open`
    features: Path  # a table with a row for each node, for `sh.open`
    labels: Path  # (nodes,) int64: the class of each node
    seeds: Path  # ascending ids of the nodes to train on, int64


@outside_graphs
@alone_after_fork
def write_power_law_graph(
    folder: str | os.PathLike[str],
    *,
    nodes: int = 111_059_956,
    edges: int = 1_615_685_872,
    features: int = 128,
    dtype: torch.dtype | str = torch.float32,
    relations: int = 1,
    classes: int = 172,
    train: float = 0.011,
    skew: int = 2,
    seed: int = 0,
    index_dtype: torch.dtype | None = None,
    indexes: Sequence[str] = ("target",),
    memory: int | str = MEMORY,
    progress: bool = True,
) -> PowerLawGraph:
    """Write a graph of the shape of ogbn-papers100M, or of any other size, with features and a task.

    Each edge, row and label follows from the seed and its own number, so chunks, threads and machines
    make no difference. What is there already of the same graph stays: a run that was stopped goes on
    with the file that it was at.

    Args:
        folder: Where to write; created if missing.
        nodes: How many there are (default 111,059,956).
        edges: How many there are (default 1,615,685,872).
        features: Numbers in a row of features (default 128).
        dtype: Of the features (default float32); whole numbers are 60 times the values, those
            without sign 80 times one more.
        relations: Each edge has one of them, as likely as any other (default 1).
        classes: Of the labels; a row has one more in the column of its class (default 172).
        train: The share of nodes that are seeds (default 0.011).
        skew: 1 gives every node as many edges; 2 (default) a power law of exponent 3, k one of
            (2k - 1) / (k - 1).
        seed: Of everything (default 0).
        index_dtype: As in `write_graph`; None (default) takes int32 where it fits.
        indexes: As in `write_graph` (default `target`).
        memory: As in `write_graph` (default 1 GiB).
        progress: Whether bars show the progress (default True).
    """
    recipe = _read_recipe(nodes, relations, skew, classes, features, seed)
    require_count("edges", edges)
    if edges and not nodes:
        raise GraphError(f"{edges:,} edges need at least one node.")
    if not 0 <= train <= 1:
        raise GraphError(f"train is a share of the nodes from 0 to 1, got {train!r}.")
    kind = parse_dtype(dtype)
    place = Path(folder)
    suffix = ".npy" if kind in NPY_DTYPES.values() else ".safetensors"
    made = PowerLawGraph(
        place,
        place / "graph",
        place / f"features{suffix}",
        place / "labels.npy",
        place / "seeds.npy",
    )
    asked = {
        "format": FORMAT,
        **vars(recipe),
        "edges": edges,
        "dtype": str(kind),
        "train": train,
        "index_dtype": str(index_dtype),
    }
    _enter(place, asked)
    if not _is_graph(made.graph):
        write_graph(
            made.graph,
            _edge_chunks(recipe, edges),
            num_nodes=nodes,
            num_relations=relations,
            num_edges=edges,
            index_dtype=index_dtype,
            indexes=(),
            progress=progress,
        )
    add_indexes(made.graph, indexes, memory=memory, progress=progress)
    _write_tables(made, recipe, kind, train, progress=progress)
    return made


def draw_features(recipe: Recipe, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """(count, features): the rows of the nodes from `first` on, from -1 to 2 where that can be said.

    >>> recipe = Recipe(nodes=10, relations=1, skew=2, classes=3, width=2, seed=0)
    >>> draw_features(recipe, 4, 2, torch.int8).tolist()
    [[-25, 36], [-44, 52]]
    """
    rows = draw_rows(recipe, first, count)
    if not (dtype.is_floating_point or dtype.is_complex):
        rows = rows.add_(1).mul_(80) if dtype in _UNSIGNED else rows.mul_(60)
    return rows.to(dtype)


def _write_tables(
    made: PowerLawGraph, recipe: Recipe, dtype: torch.dtype, train: float, *, progress: bool
) -> None:
    """Seeds, labels and features, each unless it is there."""
    step = max(1, _CHUNK_BYTES // max(4 * recipe.width, 16))
    save = partial(save_features, progress=progress)
    nodes = recipe.nodes
    starts = range(0, max(1, nodes), step)
    if not made.seeds.exists():
        save(made.seeds, (_choose_seeds(recipe, each, step, train) for each in starts))
    if not made.labels.exists():
        labels = (draw_labels(recipe, each, min(step, nodes - each))[0] for each in starts)
        save(made.labels, labels, rows=nodes)
    if not made.features.exists():
        rows = (draw_features(recipe, each, min(step, nodes - each), dtype) for each in starts)
        save(made.features, rows, rows=nodes)


_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def _read_recipe(
    nodes: int, relations: int, skew: int, classes: int, width: int, seed: int
) -> Recipe:
    for name, value, least in (
        ("nodes", nodes, 0),
        ("relations", relations, 1),
        ("skew", skew, 1),
        ("classes", classes, 1),
        ("features", width, 0),
    ):
        if require_count(name, value) < least:
            raise GraphError(f"`{name}` must be at least {least}, got {value!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise GraphError(f"seed must be a whole number, got {seed!r}.")
    return Recipe(nodes, relations, skew, classes, width, seed)


def _enter(folder: Path, asked: dict[str, object]) -> None:
    """Take the folder for this graph; one that holds another is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DESCRIPTION
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if any(folder.iterdir()):
            raise GraphError(
                f"{folder} is not empty, and no power-law graph was begun in it.\n"
                "  Give an empty folder, or one that does not exist."
            ) from None
        with whole_file(path) as file:
            file.write(json.dumps(asked, indent=1).encode())
        return
    except (OSError, ValueError, RecursionError) as error:
        raise GraphFileError(path, None, f"cannot be read: {error}.") from error
    if known != asked:
        raise GraphError(
            f"{folder} holds another power-law graph, or a part of one: it was asked for as {known}.\n"
            "  Give another folder, or remove this one."
        )


def _is_graph(folder: Path) -> bool:
    try:
        read_description(folder)
    except GraphFileError:
        return False
    return True


def _edge_chunks(recipe: Recipe, edges: int) -> Iterator[Sequence[torch.Tensor]]:
    for start in range(0, edges, _CHUNK_EDGES):
        drawn = draw_edges(recipe, start, min(_CHUNK_EDGES, edges - start))
        yield drawn if recipe.relations > 1 else drawn[:2]


def _choose_seeds(recipe: Recipe, first: int, step: int, share: float) -> torch.Tensor:
    _, purposes = draw_labels(recipe, first, min(step, recipe.nodes - first))
    return torch.nonzero(purposes >> 10 < round(share * 2**53))[:, 0] + first
