"""Rows in succession, read as they lie."""

import numpy as np
import pytest
import torch

import shorthaul as sh
from shorthaul.errors import RowIndexError
from shorthaul.tensors.files.formats import find_layout
from shorthaul.tensors.tables.disk.disk_table import DiskTable


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.uint8])
@pytest.mark.parametrize("shape", [(5_000,), (5_000, 3), (300, 7, 11)])
def test_a_stretch_is_what_a_gather_of_its_rows_is(tmp_path, dtype, shape) -> None:
    values = torch.randint(0, 200, shape).to(dtype)
    sh.save_features(tmp_path / "x.npy", values)
    with DiskTable(find_layout(tmp_path / "x.npy")) as table:
        for start, stop in ((0, 1), (17, 230), (shape[0] - 1, shape[0]), (0, shape[0])):
            assert torch.equal(table.read(start, stop), values[start:stop])
            assert torch.equal(table.gather(torch.arange(start, stop)), values[start:stop])


def test_a_stretch_reads_its_own_bytes_and_those_of_the_alignment(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3_000_000, dtype=np.int32))  # its rows begin at byte 128
    with DiskTable(find_layout(tmp_path / "x.npy")) as table, sh.meter() as meter:
        rows = table.read(1_000, 2_000_001)
        assert rows.tolist()[::500_000] == [1_000, 501_000, 1_001_000, 1_501_000]
        assert rows.nbytes <= meter.read_bytes == table.stats().read_bytes
        assert table.stats().read_bytes <= rows.nbytes + 2 * 4096
        assert table.stats().rows_asked == 1_999_001


def test_rows_that_are_not_there_are_refused(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with DiskTable(find_layout(tmp_path / "x.npy")) as table, pytest.raises(RowIndexError):
        table.read(5, 12)


def test_numbers_that_are_not_aligned_in_the_file_are_gathered(tmp_path) -> None:
    values = torch.arange(9, dtype=torch.int32)
    (tmp_path / "x.bin").write_bytes(b"abc" + values.numpy().tobytes())
    u = sh.open(tmp_path / "x.bin", dtype=torch.int32, shape=(9,), offset_bytes=3)
    assert u.table.read(2, 7).tolist() == [2, 3, 4, 5, 6]
