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


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118,
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4611686018427387904), }".ljust(
            118
        ),
        b"PK\x03\x04 of another kind",
    ],
    ids=["a header that does not end", "more than there is", "an archive"],
)
def test_a_header_that_is_not_to_be_believed(tmp_path, content) -> None:
    (tmp_path / "edges.npy").write_bytes(content)
    with pytest.raises(GraphFileError, match=r"edges\.npy: is no \.npy file"):
        RelationalGraph.read(tmp_path / "edges.npy")


def test_the_graph_is_not_read_from_the_file_any_more(tmp_path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 1], [1, 2, 0]]))
    graph = RelationalGraph.read(tmp_path / "edges.npy")
    (tmp_path / "edges.npy").write_bytes(b"")
    assert graph.target.tolist() == [1, 2, 0]
    np.save(tmp_path / "edges.npy", np.zeros((2, 0), np.int64))
    assert RelationalGraph.read(tmp_path / "edges.npy").num_edges == 0
