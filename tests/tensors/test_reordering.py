"""Tables whose rows lie in another order: the same rows by the same ids, and fewer bytes for those read most."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import shorthaul as sh
from shorthaul.errors import (
    RowArgumentError,
    RowIndexError,
    RowReadError,
    TableFormatError,
    UnifiedSourceError,
)
from shorthaul.storage import Fault, ThreadEngine, faulty_engine

ROWS = torch.randn(1000, 6, generator=torch.Generator().manual_seed(0))
ORDER = torch.randperm(1000, generator=torch.Generator().manual_seed(1))[:150]


def sources(folder: Path) -> list[object]:
    np.save(folder / "x.npy", ROWS.numpy())
    on_disk = sh.save_features(folder / "x.safetensors", ROWS).path
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    return [ROWS, ROWS.numpy(), mapped, sh.unified(ROWS), sh.open(on_disk)]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("count", [0, 150, 1000])
def test_rows_are_found_by_the_ids_that_they_had(tmp_path: Path, number: int, count: int) -> None:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(2))[:count]
    path = tmp_path / "ordered.safetensors"
    saved = sh.save_features(path, sources(tmp_path)[number], order=order, chunk_bytes=4096)
    assert saved.shape == (1000, 6)
    u = sh.open(path)
    ids = torch.tensor([3, 999, 3, -1, 0, *ORDER[:3].tolist()])
    assert torch.equal(u[ids].cpu(), ROWS[ids])
    assert torch.equal(u[:].cpu(), ROWS)
    assert torch.equal(u[400:610].cpu(), ROWS[400:610])
    assert torch.equal(u.prefetch(ids).wait(), ROWS[ids])
    weight = torch.randn(4, 6)
    assert torch.allclose(u.gather_linear(ids, weight), ROWS[ids] @ weight.t(), atol=1e-5)
    pointers = torch.tensor([0, 3, 8])
    reduced = torch.stack([ROWS[ids[:3]].sum(0), ROWS[ids[3:]].sum(0)])
    assert torch.allclose(u.gather_reduce(pointers, ids), reduced, atol=1e-5)
    with pytest.raises(RowIndexError):
        u[torch.tensor([1000])]


@pytest.mark.parametrize("quantize", ["int8", "float16", "bfloat16"])
def test_quantized_rows_are_reordered_with_their_scales(tmp_path: Path, quantize) -> None:
    sh.save_features(tmp_path / "plain.safetensors", ROWS, quantize=quantize)
    sh.save_features(tmp_path / "x.safetensors", ROWS, quantize=quantize, order=ORDER)
    plain, ordered = sh.open(tmp_path / "plain.safetensors"), sh.open(tmp_path / "x.safetensors")
    assert torch.equal(plain[:].cpu(), ordered[:].cpu())
    assert torch.equal(plain[ORDER].cpu(), ordered[ORDER].cpu())


@pytest.mark.parametrize("cache", ["sieve", "belady", ORDER[:20]])
def test_caches_keep_the_same_rows(tmp_path: Path, cache) -> None:
    path = sh.save_features(tmp_path / "x.safetensors", ROWS, order=ORDER).path
    with sh.open(path, cache=cache, cache_bytes=20 * 24).table as table:
        for ids in (ORDER[:20], ORDER[:20], torch.arange(100)):
            table.expect(ids)
        for ids in (ORDER[:20], ORDER[:20], torch.arange(100)):
            assert torch.equal(table.gather(ids), ROWS[ids])
        assert table.stats().hits >= 20


def test_other_readers_do_not_take_the_rows_for_those_of_the_table(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.safetensors", ROWS, order=ORDER).path
    tensors = load_file(path)
    assert set(tensors) == {"reordered_rows", "order"}
    assert torch.equal(tensors["reordered_rows"][:150], ROWS[ORDER])
    assert torch.equal(tensors["order"], ORDER)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 5, 0], "0 more than once"),
        ([0, 1000], "1,000 at position 1"),
        ([-1], "-1 at position 0"),
        ([0.5], "torch.float32"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_what_is_no_order_is_refused(tmp_path: Path, order, words: str) -> None:
    with pytest.raises(RowArgumentError, match=words):
        sh.save_features(tmp_path / "x.safetensors", ROWS, order=order)
    assert [*tmp_path.iterdir()] == []


def test_files_and_sources_that_cannot_be_reordered_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableFormatError, match="cannot say that its rows are reordered"):
        sh.save_features(tmp_path / "x.npy", ROWS, order=ORDER)
    with pytest.raises(UnifiedSourceError, match="where rows are reordered"):
        sh.save_features(tmp_path / "x.safetensors", iter([ROWS]), order=ORDER)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header.pop("order"), "the order is none"),
        (lambda header: header["order"].update(shape=[75, 2]), "the order is torch.int64"),
        (lambda header: header["order"].update(dtype="F64"), "the order is torch.float64"),
    ],
)
def test_a_damaged_order_is_refused(tmp_path: Path, change, words: str) -> None:
    path = sh.save_features(tmp_path / "x.safetensors", ROWS, order=ORDER).path
    data = path.read_bytes()
    header = json.loads(data[8:4096])
    change(header)
    path.write_bytes(data[:8] + json.dumps(header).encode().ljust(4088) + data[4096:])
    with pytest.raises(TableFormatError, match=words):
        sh.open(path)


def test_an_order_with_wrong_ids_is_refused(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.safetensors", ROWS, order=ORDER).path
    data = path.read_bytes()
    path.write_bytes(data[:-8] + struct.pack("<q", 10**12))
    with pytest.raises(TableFormatError, match="not different ids of 1,000 rows"):
        sh.open(path)


def test_rows_that_cannot_be_read_are_named_by_their_ids(tmp_path: Path) -> None:
    path = sh.save_features(tmp_path / "x.safetensors", ROWS, order=ORDER).path
    with (
        faulty_engine(ThreadEngine(), [Fault("errno", nth=2, onwards=True)]) as engine,
        sh.open(path, engine=engine).table as table,  # whose order is the first request
    ):
        with pytest.raises(RowReadError) as caught:
            table.gather(ORDER[:1])
        assert caught.value.rows == (int(ORDER[0]),)
        with pytest.raises(RowReadError) as caught:
            table.read(0, 1000)
        assert set(caught.value.rows) <= set(range(1000))


def test_rows_that_are_read_most_often_take_a_third_of_the_bytes(tmp_path: Path) -> None:
    """Batches of most of the hot rows and a few others; rows of 64 bytes, of which eight lie in the smallest read."""
    rows, hot, generator = 400_000, 4_000, torch.Generator().manual_seed(0)
    table = torch.arange(rows * 16, dtype=torch.float32).view(rows, 16)
    popular = torch.randperm(rows, generator=generator)

    def draw() -> torch.Tensor:
        often = popular[:hot][torch.rand(hot, generator=generator) < 0.8]
        seldom = popular[torch.randint(rows, (100,), generator=generator)]
        return torch.cat([often, seldom]).unique()

    seen = torch.cat([draw() for _ in range(20)]).bincount(minlength=rows)
    order = seen.argsort(descending=True)[:hot]
    plain = sh.open(sh.save_features(tmp_path / "plain.safetensors", table).path)
    packed = sh.open(sh.save_features(tmp_path / "packed.safetensors", table, order=order).path)
    for _ in range(3):
        ids = draw()
        assert torch.equal(plain[ids].cpu(), table[ids])
        assert torch.equal(packed[ids].cpu(), table[ids])
    read = plain.stats().read_bytes, packed.stats().read_bytes
    assert read[0] >= 3 * read[1]
    assert packed.stats().rows_asked == plain.stats().rows_asked
