"""Pairs in `.npy` files."""

import numpy as np
import pytest

from shorthaul.errors import GraphFileError
from shorthaul.graphs import RelationalGraph


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("is_turned", [False, True])
def test_pairs_either_way_round(tmp_path, dtype, is_turned) -> None:
    pairs = np.array([[0, 1, 1], [1, 2, 0]], dtype=dtype)
    np.save(tmp_path / "edges.npy", pairs.T if is_turned else pairs)
    graph = RelationalGraph.read(tmp_path / "edges.npy", num_nodes=5)
    assert graph.source.tolist() == [0, 1, 1]
    assert graph.target.tolist() == [1, 2, 0]
    assert graph.num_nodes == 5


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.int64), r"expected shape \(2, edges\) or \(edges, 2\), got \(3,\)"),
        (np.zeros((2, 3)), "expected whole numbers, got float64"),
        (np.array([[{}, 1], [2, 3]], dtype=object), r"is no \.npy file that can be read"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, message) -> None:
    np.save(tmp_path / "edges.npy", array)
    with pytest.raises(GraphFileError, match=message):
        RelationalGraph.read(tmp_path / "edges.npy")


def test_a_file_that_is_none(tmp_path) -> None:
    (tmp_path / "edges.npy").write_bytes(b"no array")
    with pytest.raises(GraphFileError, match=r"edges\.npy: is no \.npy file"):
        RelationalGraph.read(tmp_path / "edges.npy")
