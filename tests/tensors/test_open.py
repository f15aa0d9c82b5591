"""Files of every format open as tensors, and only the rows asked for are read."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shorthaul as sh
from shorthaul.errors import (
    ChangedFileError,
    ClosedTableError,
    MissingTableError,
    RowReadError,
    TableFormatError,
)
from shorthaul.storage import MemoryEngine
from shorthaul.tensors import UnifiedTensor

ROWS = torch.arange(6000.0).view(2000, 3)
IDS = torch.tensor([1999, 0, 7, 7, -2])


def write_npy(folder: Path) -> UnifiedTensor:
    np.save(folder / "x.npy", ROWS.numpy())
    return sh.open(folder / "x.npy")


def write_raw(folder: Path) -> UnifiedTensor:
    (folder / "x.bin").write_bytes(b"123" + ROWS.numpy().tobytes())
    return sh.open(folder / "x.bin", dtype=torch.float32, shape=(-1, 3), offset_bytes=3)


def write_safetensors(folder: Path) -> UnifiedTensor:
    save_file({"other": torch.ones(5), "rows": ROWS}, folder / "x.safetensors")
    return sh.open(folder / "x.safetensors", name="rows")


def write_torch(folder: Path) -> UnifiedTensor:
    torch.save({"other": torch.ones(5), "rows": ROWS}, folder / "x.pt")
    return sh.open(folder / "x.pt", name="rows")


def write_torch_view(folder: Path) -> UnifiedTensor:
    wide = torch.cat([torch.zeros(2000, 2), ROWS, torch.ones(2000, 4)], 1)
    torch.save(wide[:, 2:5], folder / "x.pt")
    return sh.open(folder / "x.pt")


@pytest.mark.parametrize(
    "write", [write_npy, write_raw, write_safetensors, write_torch, write_torch_view]
)
def test_every_format_gives_the_rows(tmp_path: Path, write) -> None:
    u = write(tmp_path)
    assert (u.kind, u.shape, u.is_read_only) == ("disk", (2000, 3), True)
    assert torch.equal(u[IDS], ROWS[IDS])
    assert torch.equal(u[500:1000:7].cpu(), ROWS[500:1000:7])
    assert torch.equal(u.gather_reduce(torch.tensor([0, 5]), IDS, "max"), ROWS[IDS].amax(0)[None])
    assert torch.equal(u.prefetch(IDS).wait(), ROWS[IDS])


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.npy", torch.ones(1 << 16, 64)).path  # 16 MiB
    with sh.meter() as measured:
        u = sh.open(path)
        assert u.shape == (1 << 16, 64)
    assert measured.read_bytes == 0
    with sh.meter() as measured:
        assert u[torch.tensor([3, 60_000])].sum() == 128
    assert 512 <= measured.read_bytes <= 3 * 4096


def test_rows_are_kept_where_asked(tmp_path: Path) -> None:
    u = sh.open(sh.save_features(tmp_path / "x.npy", ROWS).path, cache="sieve", cache_bytes="1MiB")
    assert torch.equal(u[IDS], ROWS[IDS])
    with sh.meter() as measured:
        assert torch.equal(u[IDS], ROWS[IDS])
    assert measured.read_bytes == 0
    assert u.stats().hits == 4


def test_narrow_rows_are_seen_wide(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.npy", ROWS, dtype=torch.float16).path
    assert sh.open(path)[IDS].dtype == torch.float16
    wide = sh.open(path, dtype=torch.float32)[IDS]
    assert torch.equal(wide, ROWS.half()[IDS].float())


def test_the_engine_may_be_chosen(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.npy", ROWS).path
    with MemoryEngine() as engine:
        assert torch.equal(sh.open(path, engine=engine)[IDS], ROWS[IDS])


def test_files_that_are_missing_or_cut_short(tmp_path: Path) -> None:
    with pytest.raises(MissingTableError):
        sh.open(tmp_path / "x.npy")
    path = sh.save_features(tmp_path / "x.npy", ROWS).path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableFormatError, match="cut short"):
        sh.open(path)


def test_a_file_that_shrinks_under_an_open_table(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.npy", ROWS).path
    u = sh.open(path)
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises((RowReadError, ChangedFileError)):
        u[torch.tensor([1999])]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6).view(3, 2).to(torch.complex64).conj(),
        lambda: torch._neg_view(torch.ones(3, 2)),
        lambda: {"rows": torch.ones(3, 2, dtype=torch.complex64).conj()},
    ],
    ids=["conjugate", "negated", "inside a dictionary"],
)
def test_a_saved_view_whose_memory_is_not_its_values_is_refused(tmp_path: Path, make) -> None:
    torch.save(make(), tmp_path / "x.pt")
    with pytest.raises(TableFormatError, match="a conjugate or negated view"):
        sh.open(tmp_path / "x.pt")


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    torch.save(torch.eye(3).to_sparse(), tmp_path / "x.pt")
    with pytest.raises(TableFormatError, match="do not lie in the file"):
        sh.open(tmp_path / "x.pt")


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")  # opening it would wait for a writer
    with pytest.raises(TableFormatError, match="a pipe, a socket or a device"):
        sh.open(tmp_path / "x.npy")


def test_a_closed_table_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS.numpy())
    u = sh.open(tmp_path / "x.npy")
    part, handed_out = u[2:], u[IDS]
    u.close()
    weight = torch.ones(1, 3)
    for ask in (
        lambda: u[IDS],
        lambda: u.cpu(),
        lambda: part[IDS[1:]],
        lambda: u.prefetch(IDS).wait(),
        lambda: u.gather_reduce(torch.tensor([0, 5]), IDS),
        lambda: u.gather_linear(IDS, weight),
        lambda: u.gather(IDS, out=torch.empty(5, 3)),
    ):
        with pytest.raises(ClosedTableError, match=r"x\.npy has been closed"):
            ask()
    assert torch.equal(handed_out, ROWS[IDS])
    u.close()


def write_quantized(path: Path, rows: torch.Tensor, scales: torch.Tensor | None, seen: str) -> None:
    tensors = {"rows": rows} if scales is None else {"rows": rows, "scales": scales}
    save_file(tensors, path, metadata={"shorthaul.seen_dtype": seen})


@pytest.mark.parametrize(
    ("rows", "scales", "seen"),
    [
        (torch.ones(4, 3, dtype=torch.int8), torch.ones(4, dtype=torch.float64), "F32"),
        (torch.ones(4, 3, dtype=torch.int8), torch.ones(4, dtype=torch.bfloat16), "F32"),
        (torch.ones(4, 3, dtype=torch.int8), torch.ones(3), "F32"),
        (torch.ones(4, 3, dtype=torch.int8), torch.ones(4, 1), "F32"),
        (torch.ones(4, 3, dtype=torch.int8), None, "F32"),
        (torch.ones(4, 3, dtype=torch.int8), torch.ones(4), "I64"),
        (torch.ones(4, 3, dtype=torch.float16), torch.ones(4), "F32"),
        (torch.ones(4, 3, dtype=torch.int64), None, "F32"),
        (torch.ones(4, 3, dtype=torch.float16), None, "BOOL"),
        (torch.ones(4, 3, dtype=torch.float16), None, "C64"),
    ],
)
def test_scales_and_dtypes_of_a_quantized_file_are_checked(tmp_path, rows, scales, seen) -> None:
    write_quantized(tmp_path / "x.safetensors", rows, scales, seen)
    with pytest.raises(TableFormatError, match="are no quantized table"):
        sh.open(tmp_path / "x.safetensors")


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("ask", ["gather", "prefetch", "gather_reduce", "gather_linear"])
def test_a_child_whose_parent_used_many_threads_gathers(tmp_path: Path, where, ask) -> None:
    """PyTorch's operators on many ids would wait there for threads that only the parent has."""
    if where == "memory" and ask == "prefetch":
        pytest.skip("it gathers at once")
    script = f"""
import os, signal, numpy as np, torch, shorthaul as sh
torch.set_num_threads(2)
rows = torch.arange(600.0).view(200, 3)
np.save({str(tmp_path / "x.npy")!r}, rows.numpy())
u = sh.open({str(tmp_path / "x.npy")!r}) if {where!r} == "disk" else sh.unified(rows)
ids = torch.arange(100_000, dtype=torch.int32) % 200
pointers = torch.arange(0, 100_001)
weight = torch.eye(3)
torch.randn(1_000_000).exp()  # the parent's pool
calls = dict(
    gather=lambda: u[ids],
    prefetch=lambda: u.prefetch(ids).wait(),
    gather_reduce=lambda: u.gather_reduce(pointers, ids),
    gather_linear=lambda: u.gather_linear(ids, weight),
)
child = os.fork()
if child == 0:
    signal.alarm(60)
    found = calls[{ask!r}]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(found, rows[ids]) and threads == 1 else 3)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
