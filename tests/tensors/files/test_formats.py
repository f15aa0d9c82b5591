"""Where rows lie in a file, for every format, and what is said of files that are something else."""

import itertools
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shorthaul.errors import MissingTableError, TableFormatError, TableOpenError
from shorthaul.tensors.files.formats import NPY_DTYPES, choose_format, find_layout
from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.files.safetensors import SAFETENSORS_DTYPES


def read(layout: DiskLayout) -> torch.Tensor:
    """The rows that a layout names, read in the plainest way."""
    data = layout.path.read_bytes()
    stored = layout.stored_dtype or layout.dtype
    rows = [
        torch.frombuffer(
            bytearray(data[start : start + layout.row_bytes] or b"\0" * stored.itemsize),
            dtype=stored,
        )[: layout.row_bytes // stored.itemsize].view(layout.shape[1:])
        for start in range(
            layout.offset_bytes,
            layout.offset_bytes + layout.shape[0] * layout.row_stride_bytes,
            max(1, layout.row_stride_bytes),
        )
    ]
    return torch.stack(rows)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (
        torch.arange(int(np.prod(shape)))
        .remainder(2 if dtype == torch.bool else 100)
        .view(shape)
        .to(dtype)
    )


NPY_KINDS = sorted(set(NPY_DTYPES.values()), key=str)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*zip(NPY_KINDS, itertools.cycle([(7,), (5, 3), (4, 2, 3)]), strict=False)],
    ids=str,
)
def test_npy_files(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, *shape)
    np.save(tmp_path / "x.npy", x.numpy())
    layout = find_layout(tmp_path / "x.npy")
    assert (layout.dtype, layout.shape, layout.offset_bytes) == (dtype, shape, 128)
    assert torch.equal(read(layout), x)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path: Path, version: tuple[int, int]) -> None:
    x = np.arange(6.0).reshape(3, 2)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, x, version)
    assert torch.equal(read(find_layout(tmp_path / "x.npy")), torch.from_numpy(x))


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES.values(), ids=str)
def test_safetensors_files(tmp_path: Path, dtype: torch.dtype) -> None:
    x = numbers(dtype, 5, 3)
    save_file({"first": torch.ones(2), "second": x}, tmp_path / "x.safetensors")
    layout = find_layout(tmp_path / "x.safetensors", name="second")
    assert (layout.dtype, layout.shape) == (dtype, (5, 3))
    assert torch.equal(read(layout).view(torch.uint8), x.view(torch.uint8))
    with pytest.raises(TableFormatError, match=r"2 tensors \(first, second\), and no `name`"):
        find_layout(tmp_path / "x.safetensors")
    with pytest.raises(TableFormatError, match="'third' is none of them"):
        find_layout(tmp_path / "x.safetensors", name="third")


@pytest.mark.parametrize("suffix", [".pt", ".bin"])
def test_torch_files(tmp_path: Path, suffix: str) -> None:
    path, x = tmp_path / f"x{suffix}", torch.arange(40.0).view(8, 5)
    torch.save(x, path)
    assert torch.equal(read(find_layout(path)), x)
    torch.save(x[2:6, 1:4], path)  # saved with the whole storage
    layout = find_layout(path)
    assert (layout.shape, layout.row_stride_bytes, layout.row_bytes) == ((4, 3), 20, 12)
    assert torch.equal(read(layout), x[2:6, 1:4])
    torch.save({"model": {"weight": x.bfloat16()}, "steps": [torch.ones(2, 2), 5]}, path)
    assert torch.equal(read(find_layout(path, name="model.weight")), x.bfloat16())
    assert torch.equal(read(find_layout(path, name="steps.0")), torch.ones(2, 2))
    torch.save(torch.nn.Parameter(x), path)
    assert torch.equal(read(find_layout(path)), x)
    torch.save(x.t(), path)
    with pytest.raises(TableFormatError, match="not side by side"):
        find_layout(path)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_pickles_are_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.pt"
    torch.save({"rows": torch.ones(2, 2), "other": Trap()}, path)
    with pytest.raises(TableFormatError, match="never executed"):
        find_layout(path, name="rows")
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(TableFormatError, match="not a whole zip file"):
        find_layout(path)
    array = np.empty(1, object)
    array[0] = Trap()
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(TableFormatError, match="Objects, strings and records are never read"):
        find_layout(tmp_path / "x.npy")
    assert not (tmp_path / "sprung").exists()


def test_raw_files(tmp_path: Path) -> None:
    path, x = tmp_path / "x.raw", torch.arange(12, dtype=torch.int16).view(6, 2)
    path.write_bytes(b"head" + x.numpy().tobytes())
    for rows in (6, -1):
        layout = find_layout(path, dtype=torch.int16, shape=(rows, 2), offset_bytes=4)
        assert torch.equal(read(layout), x)
    assert find_layout(path, dtype=torch.int8, shape=(-1,)).shape == (28,)
    for shape, offset, said in (
        ((-1, 5), 0, "no whole number of rows of 10 bytes"),
        ((8, 2), 0, "cut short: 8 rows end at byte 32, and the file has 28 bytes"),
        ((), 0, r"cannot have shape \(\)"),
        ((3, -1), 0, r"cannot have shape \(3, -1\)"),
        ((-1, 2), -4, "from byte -4"),
        ((-1, 0), 0, "rows of 0 bytes"),
    ):
        with pytest.raises(TableFormatError, match=said):
            find_layout(path, dtype=torch.int16, shape=shape, offset_bytes=offset)
    with pytest.raises(TableFormatError, match=r"sh\.open\(path, dtype=torch\.float32"):
        find_layout(path)


def test_what_was_asked_for_must_be_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 2), np.float16))
    assert find_layout(path, dtype=torch.float16, shape=(-1, 2)).shape == (3, 2)
    widened = find_layout(path, dtype=torch.float32)
    assert (widened.dtype, widened.stored_dtype, widened.row_bytes) == (
        torch.float32,
        torch.float16,
        4,
    )
    for options, said in (
        ({"dtype": torch.float64}, "holds torch.float16, and torch.float64 was asked for"),
        ({"shape": (4, 2)}, r"has shape \(3, 2\), and \(4, 2\) was asked for"),
        ({"shape": (6,)}, r"and \(6,\) was asked for"),
        ({"name": "rows"}, "holds one table, and 'rows' was asked for"),
        ({"offset_bytes": 4}, "`offset_bytes` is for raw files"),
    ):
        with pytest.raises(TableFormatError, match=said):
            find_layout(path, **options)


def header(**changes: object) -> bytes:
    text = str({"descr": "<f4", "fortran_order": False, "shape": (3, 2)} | changes).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(24)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header(fortran_order=True), "Fortran order"),
        (header(descr=">f4"), "other byte order"),
        (header(descr="|O"), "never read"),
        (header(descr=[("a", "<f4")]), "never read"),
        (header(descr="<U4"), "never read"),
        (header(shape=()), "a table has rows"),
        (header(shape=(-1, 2)), "a table has rows"),
        (header(shape=(4, 2)), "cut short: 4 rows end at byte"),
        (header(shape="three"), "header cannot be read"),
        (header()[:30], "header cannot be read"),
        (b"\x93NUMPY\x01\x00", "header cannot be read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "does not begin as"),
        (b"", "does not begin as"),
        (b"\x93NUMPY\x01\x00\x20\x00__import__('os').abort()        ", "header cannot be read"),
    ],
)
def test_damaged_npy_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(TableFormatError, match=said):
        find_layout(path)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"abc", "does not begin as"),
        (struct.pack("<Q", 2**60), "does not begin as"),
        (safetensors(b"[1, 2"), "header cannot be read"),
        (safetensors([1]), "header cannot be read"),
        (safetensors({}), "holds no tensor"),
        (safetensors({"x": {"dtype": "F32", "shape": [2]}}), "header cannot be read"),
        (
            safetensors({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 8]}}),
            "holds F4, which is not read",
        ),
        (
            safetensors({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}),
            "contradict its shape",
        ),
        (
            safetensors({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
            "cut short",
        ),
        (safetensors({"x": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}), "has rows"),
    ],
)
def test_damaged_safetensors_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(TableFormatError, match=said):
        find_layout(path)


def test_truncated_and_old_torch_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.ones(1000), path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(TableFormatError, match="not a whole zip file"):
        find_layout(path)
    torch.save(torch.ones(1000), path, _use_new_zipfile_serialization=False)
    with pytest.raises(TableFormatError, match=r"before torch 1\.6 can be converted"):
        find_layout(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot be opened: ENOENT") as caught:
        find_layout(tmp_path / "none.npy")
    assert isinstance(caught.value, MissingTableError)
    with pytest.raises(TableOpenError, match="EISDIR"):
        find_layout(tmp_path)
    (tmp_path / "circle.npy").symlink_to(tmp_path / "circle.npy")
    with pytest.raises(TableOpenError, match="ELOOP"):
        find_layout(tmp_path / "circle.npy")


def test_links_are_followed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    (tmp_path / "y.npy").symlink_to("x.npy")
    assert find_layout(tmp_path / "y.npy").path == (tmp_path / "x.npy").resolve()


@pytest.mark.parametrize(
    ("suffix", "first", "given", "format_"),
    [
        (".npy", b"", (True, True), "npy"),
        (".safetensors", b"", (False, False), "safetensors"),
        (".pth", b"", (False, False), "torch"),
        (".bin", b"PK\x03\x04", (True, True), "raw"),
        (".bin", b"PK\x03\x04", (False, True), "torch"),
        ("", b"\x93NUMPY\x01\x00", (True, False), "npy"),
        ("", b"\x93NUMPY\x01\x00", (True, True), "raw"),
        (".dat", b"anything", (False, False), None),
    ],
)
def test_every_row_of_the_table_of_formats(suffix, first, given, format_) -> None:
    assert choose_format(suffix, first, *given) == format_


def test_a_zip_file_whose_names_are_no_text_is_an_error(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(torch.zeros(3, 2), path)
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\x01\x02")  # the first entry of the table of contents
    content[start + 9] |= 8  # its name is said to be in UTF-8
    content[start + 46] = 0xF4
    path.write_bytes(content)
    with pytest.raises(TableFormatError, match="not a whole zip file"):
        find_layout(path)
