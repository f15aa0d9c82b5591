"""Formats are seen in names and first bytes."""

import gzip

import pytest

from shorthaul.errors import GraphFileError
from shorthaul.graphs.readers.detect import detect_format


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.nt", "", "n_triples"),
        ("x.nt.gz", "", "n_triples"),
        ("x", "# c\n<a> <b> <c> .\n", "n_triples"),
        ("x", "_:a <b> <c> .\n", "n_triples"),
        ("x.npy", "", "npy_pairs"),
        ("x.txt", "2\n0 1 0\n1 2 0\n", "open_ke"),
        ("x.txt", "0 1\n", "edge_list"),
        ("x.csv", "% c\n0,1\n2,3\n", "edge_list"),
        ("x.csv", "s,p,o\n0,1,2\n", "triples"),
        ("x.tsv", "0\t1\t2\n", "triples"),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_files(tmp_path, name, text, expected, is_packed) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    assert detect_format(path) == expected


def test_a_long_file_is_judged_by_its_whole_lines(tmp_path) -> None:
    path = tmp_path / "x"
    path.write_text("1234567 7654321 1\n" * 1000)
    assert detect_format(path) == "triples"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert detect_format(path) == "triples"


@pytest.mark.parametrize("name", ["train2id.txt", "valid2id.txt"])
def test_open_ke_folders(tmp_path, name) -> None:
    (tmp_path / name).touch()
    assert detect_format(tmp_path) == "open_ke"


@pytest.mark.parametrize("name", ["raw/edge.csv.gz", "triplet-type-list.csv.gz"])
def test_ogb_folders(tmp_path, name) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / name).touch()
    assert detect_format(tmp_path) == "ogb"


@pytest.mark.parametrize("text", ["", "some words here\n", "1 2 3 4\n", "0.5 1.5\n"])
def test_what_is_not_clear_is_asked_for(tmp_path, text) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(GraphFileError, match="say format='n_triples'"):
        detect_format(path)


def test_a_folder_of_something_else(tmp_path) -> None:
    with pytest.raises(GraphFileError, match=r"opened with `RelationalGraph\.open`"):
        detect_format(tmp_path)


def test_a_path_that_is_not_there(tmp_path) -> None:
    with pytest.raises(GraphFileError, match="gone: cannot be read"):
        detect_format(tmp_path / "gone")
