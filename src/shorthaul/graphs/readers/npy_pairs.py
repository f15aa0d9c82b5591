"""Edges as a numpy array of pairs, (2, edges) or (edges, 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shorthaul.errors import GraphFileError
from shorthaul.graphs.graph import RelationalGraph


def read_npy_pairs(path: Path, **options: Any) -> RelationalGraph:
    """A graph from a `.npy` file; options are those of `RelationalGraph.from_edges`."""
    return RelationalGraph.from_edge_index(load_pairs(path), **options)


def load_pairs(path: Path) -> npt.NDArray[Any]:
    """The array as (2, edges); pickled arrays are refused."""
    try:
        # Mapped: numpy would otherwise take memory for as many numbers as the header promises.
        pairs = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # of every kind: numpy parses the header as Python
        raise GraphFileError(path, None, f"is no .npy file that can be read: {error}.") from error
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise GraphFileError(
            path, None, f"expected shape (2, edges) or (edges, 2), got {pairs.shape}."
        )
    if pairs.dtype.kind not in "iu":
        raise GraphFileError(path, None, f"expected whole numbers, got {pairs.dtype}.")
    pairs = pairs if pairs.shape[0] == 2 else pairs.T
    wanted = np.dtype(np.int64) if pairs.dtype.name in ("uint32", "uint64") else pairs.dtype
    # Copied: the file may change, or end, while the graph is used.
    return np.array(pairs, dtype=wanted.newbyteorder("="))
