"""The engine over kvikio keeps the contract of storage engines, and waits for what computes."""

from __future__ import annotations

import errno
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from shorthaul.errors import EngineUnavailableError, ShortReadError, StorageError
from shorthaul.offload.device import gds_engine
from shorthaul.offload.device.gds_engine import GdsEngine
from shorthaul.storage import open_file
from shorthaul.storage.testing.contract import PATIENCE_SECONDS, content_of
from tests.contracts.storage_engine_contract import StorageEngineContract
from tests.offload.fake_kvikio import FakeKvikio
from tests.offload.recorded_streams import RecordedStreams


def _open(**options: Any) -> GdsEngine:
    return GdsEngine(**({"kvikio": FakeKvikio(), "backend": RecordedStreams()} | options))


class TestGdsEngine(StorageEngineContract):
    def open_engine(self, **options: object) -> GdsEngine:
        return _open(**options)


@pytest.fixture
def tensors_are_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors stand for a device's; only their number format is looked at."""
    monkeypatch.setattr(gds_engine, "_is_on_device", lambda each: isinstance(each, torch.Tensor))


@pytest.mark.usefixtures("tensors_are_on_a_device")
def test_tensors_go_straight_to_disk_when_they_are_computed(tmp_path: Path) -> None:
    streams, kvikio = RecordedStreams(), FakeKvikio()
    source, target = torch.zeros(3000), torch.empty(3000)
    streams.compute_next(lambda: source.copy_(torch.arange(3000.0)))
    with _open(kvikio=kvikio, backend=streams) as engine, open_file(tmp_path, "scratch") as file:
        engine.write(file, 4096, source).wait(PATIENCE_SECONDS)
        assert streams.log == ["compute: record event 1", "host: wait for event 1"]
        engine.read(file, 4096, target).wait(PATIENCE_SECONDS)
        assert torch.equal(target, torch.arange(3000.0))
        assert len(kvikio.opened) == 1
        assert kvikio.opened[0][1] == "r+"
    del file, engine
    gc.collect()
    assert kvikio.closed == 1


@pytest.mark.usefixtures("tensors_are_on_a_device")
def test_a_tensor_with_gaps_is_refused(tmp_path: Path) -> None:
    with (
        _open() as engine,
        open_file(tmp_path, "scratch") as file,
        pytest.raises(ValueError, match="expected a contiguous tensor"),
    ):
        engine.write(file, 0, torch.zeros(4, 6).t())


@pytest.mark.parametrize("largest_bytes", [1000, 4096])
def test_short_moves_are_continued(tmp_path: Path, largest_bytes: int) -> None:
    content = content_of(20_000)
    with (
        _open(kvikio=FakeKvikio(largest_bytes=largest_bytes)) as engine,
        open_file(tmp_path, "scratch") as file,
    ):
        engine.write(file, 0, content).wait(PATIENCE_SECONDS)
        target = bytearray(20_000)
        engine.read(file, 0, target).wait(PATIENCE_SECONDS)
        assert target == content
        with pytest.raises(ShortReadError):
            engine.read(file, 10_000, bytearray(20_000)).wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("raised", "code"),
    [(OSError(errno.ENOSPC, "full"), errno.ENOSPC), (RuntimeError("cuFile error 5028"), errno.EIO)],
)
def test_errors_of_kvikio_come_out_with_file_and_range(
    tmp_path: Path, raised: Exception, code: int
) -> None:
    kvikio = FakeKvikio()
    kvikio.errors.append(raised)
    with _open(kvikio=kvikio) as engine, open_file(tmp_path, "scratch") as file:
        with pytest.raises(StorageError) as caught:
            engine.write(file, 4096, bytes(5000)).wait(PATIENCE_SECONDS)
        assert caught.value.errno == code
        assert (caught.value.offset_bytes, caught.value.length_bytes) == (4096, 5000)


def test_a_read_only_file_is_opened_for_reading(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"content")
    kvikio = FakeKvikio()
    with _open(kvikio=kvikio) as engine, open_file(path) as file:
        target = bytearray(7)
        engine.read(file, 0, target).wait(PATIENCE_SECONDS)
        assert target == b"content"
        assert kvikio.opened[0][1] == "r"


def test_a_missing_kvikio_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kvikio", None)  # importing it then fails
    with pytest.raises(EngineUnavailableError, match="kvikio is not installed"):
        GdsEngine()
