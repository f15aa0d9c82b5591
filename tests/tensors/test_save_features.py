"""Tables are written piece by piece, whole or not at all, in formats that others read."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import shorthaul as sh
from shorthaul.errors import StorageError, TableFormatError, TableOpenError, UnifiedSourceError
from shorthaul.settings import settings
from shorthaul.storage import Fault, ThreadEngine, faulty_engine
from shorthaul.tensors.save_features import npy_header

ROWS = torch.arange(3000.0).view(1000, 3)


def chunks_of(sizes=(1, 400, 0, 599)):
    return (each.clone() for each in ROWS.split(list(sizes)))


@pytest.mark.parametrize(
    "source",
    [
        lambda: ROWS,
        lambda: ROWS.numpy(),
        lambda: ROWS.t().contiguous().t(),
        lambda: sh.unified(ROWS),
        lambda: ROWS.clone().requires_grad_(),
        chunks_of,
        lambda: [each.numpy() for each in chunks_of()],
        lambda: np.broadcast_to(ROWS.numpy(), ROWS.shape),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".bin"])
def test_every_source_in_every_format(tmp_path: Path, source, suffix: str) -> None:
    saved = sh.save_features(tmp_path / f"x{suffix}", source(), chunk_bytes=4096)
    assert (saved.shape, saved.dtype) == ((1000, 3), torch.float32)
    assert saved.file_bytes == saved.path.stat().st_size
    if suffix == ".npy":
        assert torch.equal(torch.from_numpy(np.load(saved.path)), ROWS)
    elif suffix == ".safetensors":
        assert torch.equal(load_file(saved.path)["rows"], ROWS)
    else:
        assert saved.path.read_bytes() == ROWS.numpy().tobytes()
    opened = sh.open(saved.path, dtype=torch.float32, shape=(-1, 3))
    assert torch.equal(opened.cpu(), ROWS)
    assert opened.table.layout.offset_bytes == (0 if suffix == ".bin" else 4096)
    assert [*tmp_path.iterdir()] == [saved.path]


def test_a_file_is_copied_from_disk_to_disk(tmp_path: Path) -> None:
    first = sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path)
    again = sh.save_features(tmp_path / "y.safetensors", first[10:], chunk_bytes=4096)
    assert torch.equal(sh.open(again.path).cpu(), ROWS[10:])


@pytest.mark.parametrize("quantize", ["float16", "bfloat16", "int8"])
def test_quantized_files(tmp_path: Path, quantize) -> None:
    saved = sh.save_features(tmp_path / "x.safetensors", chunks_of(), quantize=quantize)
    assert saved.stored_dtype == getattr(torch, quantize)
    opened = sh.open(saved.path)
    assert opened.dtype == torch.float32
    ids = torch.tensor([999, 0, 500, -1])
    assert torch.equal(opened[ids], sh.unified(sh.tensors.quantize(ROWS, quantize))[ids])
    worst = (opened.cpu() - ROWS).abs().max().item()
    assert worst == pytest.approx(saved.largest_error)
    assert saved.file_bytes < 4096 + ROWS.nbytes * 0.61
    empty = sh.save_features(tmp_path / "y.safetensors", ROWS[:0], quantize=quantize)
    assert sh.open(empty.path)[torch.empty(0, dtype=torch.int64)].shape == (0, 3)


def test_dtypes_are_converted_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    saved = sh.save_features(path, [ROWS[:5].int(), ROWS[5:].double()], dtype=torch.float16)
    assert np.load(path).dtype == np.float16
    assert saved.stored_dtype == torch.float16
    with pytest.raises(UnifiedSourceError, match=r"torch\.float64 of shape .* as chunk 1"):
        sh.save_features(path, [ROWS[:5].int(), ROWS[5:].double()])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (list, "at least one chunk, got none"),
        (lambda: [ROWS, ROWS[:, :2]], r"shape \(3,\) and torch.float32"),
        (lambda: ["rows"], "rows in each chunk, got str as chunk 0"),
        (lambda: [torch.tensor(1.0)], "rows in each chunk, got Tensor as chunk 0"),
        (lambda: torch.tensor(1.0), "got a single number"),
        (lambda: "rows", "a tensor, an array or chunks of rows, got builtins.str"),
        (lambda: 5, "got builtins.int"),
    ],
)
def test_sources_that_are_no_rows(tmp_path: Path, source, said: str) -> None:
    with pytest.raises(UnifiedSourceError, match=said):
        sh.save_features(tmp_path / "x.npy", source())
    assert not [*tmp_path.iterdir()]


def test_formats_that_cannot_hold_it(tmp_path: Path) -> None:
    for name, options, said in (
        ("x.pt", {}, "are read, not written"),
        ("x.npy", {"quantize": "int8"}, "cannot say that its rows are quantized"),
        ("x.npy", {"dtype": torch.bfloat16}, "no torch.bfloat16"),
    ):
        with pytest.raises(TableFormatError, match=said):
            sh.save_features(tmp_path / name, ROWS, **options)
    with pytest.raises(TableOpenError, match="cannot be written: ENOENT"):
        sh.save_features(tmp_path / "none" / "x.npy", ROWS)
    assert not [*tmp_path.iterdir()]


def test_an_error_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.npy", ROWS).path

    def broken():
        yield ROWS
        raise KeyError("half-way")

    with pytest.raises(KeyError, match="half-way"):
        sh.save_features(path, broken(), chunk_bytes=4096)
    fault = Fault("errno", 2, action="write", code=errno.ENOSPC)
    with (
        faulty_engine(ThreadEngine(), [fault]) as engine,
        pytest.raises(StorageError, match="ENOSPC"),
    ):
        sh.save_features(path, ROWS * 2, chunk_bytes=4096, engine=engine)
    assert torch.equal(sh.open(path).cpu(), ROWS)
    assert [*tmp_path.iterdir()] == [path]


def test_the_engine_that_keeps_files_in_memory_is_not_taken(tmp_path: Path) -> None:
    with settings.override(engine="memory"):
        path = sh.save_features(tmp_path / "x.npy", ROWS).path
    assert torch.equal(torch.from_numpy(np.load(path)), ROWS)


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = sh.save_features(tmp_path / "x.npy", ROWS).path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_memory_holds_a_few_chunks_at_a_time(tmp_path: Path) -> None:
    chunk = torch.ones(1 << 20)  # 4 MiB
    with sh.meter() as before:
        pass
    with sh.meter() as measured:
        sh.save_features(tmp_path / "x.npy", (chunk for _ in range(16)), chunk_bytes="4MiB")
    assert measured.written_bytes == 16 * chunk.nbytes + 4096
    more_bytes = measured.peak_kept_bytes - sum(before.kept_bytes.values())
    assert more_bytes <= 3 * chunk.nbytes + (1 << 20)


def test_progress_is_shown_where_it_is_wanted(tmp_path: Path, capsys) -> None:
    with settings.override(progress="on"):
        sh.save_features(tmp_path / "x.npy", chunks_of(), rows=1000)
        assert "writing x.npy" in capsys.readouterr().err
        sh.save_features(tmp_path / "x.npy", ROWS, progress=False)
    sh.save_features(tmp_path / "x.npy", ROWS)
    assert capsys.readouterr().err == ""


def test_headers_are_whole_blocks_that_numpy_reads(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bool, torch.int8, torch.complex128, torch.uint16):
        path = tmp_path / "x.npy"
        path.write_bytes(npy_header(path, (2, 3), dtype) + bytes(6 * dtype.itemsize))
        loaded = np.load(path)
        assert (loaded.shape, torch.from_numpy(loaded).dtype) == ((2, 3), dtype)


def test_what_a_killed_writer_left_is_swept_at_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "x[1].npy"
    script = (
        "import os, signal, torch, shorthaul as sh\n"
        "def chunks():\n"
        "    yield torch.zeros(4096, 8)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sh.save_features({str(path)!r}, chunks(), chunk_bytes='64KiB')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len([*tmp_path.iterdir()]) == 1
    other = tmp_path / ".y.npy.0123abcd.part"  # of another table, whose next save sweeps it
    other.touch()
    sh.save_features(path, ROWS)
    assert sorted(tmp_path.iterdir()) == sorted([path, other])


def test_what_another_writer_is_writing_is_left_alone(tmp_path: Path) -> None:
    def chunks():
        yield ROWS
        sh.save_features(tmp_path / "x.npy", ROWS[:5])  # the same table, by another writer
        yield ROWS

    saved = sh.save_features(tmp_path / "x.npy", chunks())
    assert np.load(saved.path).shape == (2 * len(ROWS), *ROWS.shape[1:])
    assert [each.name for each in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("quantize", [None, "bfloat16", "int8"])
def test_negated_and_float64_features_are_saved_as_their_values(tmp_path: Path, quantize) -> None:
    """numpy's default is float64, and a negated view only says what it is."""
    values = torch._neg_view(torch.linspace(-2, 2, 300, dtype=torch.float64).view(30, 10))
    saved = sh.save_features(tmp_path / "x.safetensors", values, quantize=quantize)
    u = sh.open(saved.path)
    ids = torch.tensor([29, 0, 3])
    bound = {None: 0.0, "bfloat16": 2.0**-8, "int8": 2.0**-7}[quantize]
    expected = values.clone()[ids]
    assert u.dtype is torch.float64
    assert float((u[ids] - expected).abs().max()) <= bound
    pointers = torch.tensor([0, 3])
    assert (
        float((u.gather_reduce(pointers, ids) - expected.sum(0)).abs().max()) <= 3 * bound + 1e-15
    )
    weight = torch.eye(10, dtype=torch.float64)
    assert float((u.gather_linear(ids, weight) - expected).abs().max()) <= bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_int8_tables_do_not_depend_on_the_default_dtype(tmp_path: Path, dtype) -> None:
    expected = sh.tensors.quantize(ROWS, "int8")
    try:
        torch.set_default_dtype(dtype)
        saved = sh.save_features(tmp_path / "x.safetensors", ROWS, quantize="int8")
        found = sh.tensors.quantize(ROWS, "int8")
        opened = sh.open(saved.path)
        ids = torch.arange(len(ROWS))
        assert torch.equal(opened[ids], expected.gather(ids))
        assert torch.equal(found.gather(ids), expected.gather(ids))
        assert found.stored.scales.dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
