"""`open` tells what a folder of parts has, and refuses questions about what it has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.distributed.checked_files import FilesToCheck, check_files
from shorthaul.distributed.partition import manifest as manifest_module
from shorthaul.distributed.partition.manifest import Manifest
from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.world import find_world
from shorthaul.errors import PartFileError, RowArgumentError
from tests.distributed.part_folders import cut_homogeneous, drawn_graph, features_of, typed_graph
from tests.distributed.rank_processes import run_ranks


def test_a_process_alone_sees_everything(tmp_path: Path) -> None:
    made = cut_homogeneous(tmp_path, 3)
    parts = sh.distributed.open(tmp_path)
    assert (parts.rank, parts.ranks, parts.near_parts) == (0, 1, [0, 1, 2])
    originals = parts.originals().long()
    assert sorted(originals[parts.seeds()].tolist()) == made["seeds"].tolist()
    assert parts.labels()[torch.arange(60)].equal(made["labels"][originals])
    assert parts.graph.num_edges == drawn_graph().num_edges
    assert parts.book.parts == 1
    assert str(parts) == "Parts(rank 0 of 1, parts 0 to 2: 60 node)"


def test_questions_about_what_is_not_there_are_refused(tmp_path: Path) -> None:
    x = {"paper": features_of(30), "author": features_of(20)}
    sh.distributed.partition(typed_graph(), tmp_path, 2, features=x)
    parts = sh.distributed.open(tmp_path)
    with pytest.raises(RowArgumentError, match="there are 2 tables `features`"):
        parts.features()
    with pytest.raises(RowArgumentError, match="there are 0 seeds"):
        parts.seeds()
    with pytest.raises(RowArgumentError, match="author, paper"):
        parts.originals("term")
    with pytest.raises(RowArgumentError, match="mapped, memory, disk"):
        parts.features("paper", storage="tape")  # type: ignore[arg-type]
    with pytest.raises(RowArgumentError, match="a positive number"):
        sh.distributed.open(tmp_path, timeout_seconds=0)


def check_in_slices(rank: int, folder: Path) -> int:
    """How often ranks meet when each file takes longer than they work at a time."""
    manifest = Manifest.read(folder)
    files = FilesToCheck(folder, manifest, (rank,), (rank,), (0, 1), rank)
    line = Line(find_world(), timeout_seconds=20.0, name="test")
    line.timeout_seconds = 0.0
    met: list[str] = []
    run = line.run

    def counting(where: str, work: Any) -> Any:
        met.append(where)
        return run(where, work)

    line.run = counting  # type: ignore[method-assign]
    check_files(line, files, "", checksums=True)
    return len(met)


def test_ranks_meet_while_they_check_files(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, hot=0.1)
    one, other = run_ranks(check_in_slices, 2, tmp_path, tmp_path)
    assert one == other > len(Manifest.read(tmp_path).files) / 2


def test_ranks_meet_within_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_homogeneous(tmp_path, 1)
    manifest = Manifest.read(tmp_path)
    monkeypatch.setattr(manifest_module, "_SUMMED_BYTES", 100)
    name = "topology/edges.npy"
    size_bytes, _ = manifest.files[name]
    met = list(manifest.require_checksums(tmp_path, lambda each: each == name))
    assert len(met) == -(-size_bytes // 100) > 1


def change_last_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("file", ["part-1/node.features.npy", "hot/node.features.npy"])
def test_checksums_of_rows_may_be_left_out(tmp_path: Path, file: str) -> None:
    cut_homogeneous(tmp_path, 2, hot=0.1)
    change_last_byte(tmp_path / file)
    sh.distributed.open(tmp_path, checksums=False)
    with pytest.raises(PartFileError, match=r"features\.npy: its checksum"):
        sh.distributed.open(tmp_path)


@pytest.mark.parametrize(
    ("layout", "file"),
    [
        ("replicated", "topology/sources.npy"),
        ("replicated", "seeds/node.npy"),
        ("replicated", "hot/node.ids.npy"),
        ("split", "topology-1/node.pointers.npy"),
    ],
)
def test_ids_that_nobody_checked_reach_no_kernel(tmp_path: Path, layout: str, file: str) -> None:
    cut_homogeneous(tmp_path, 2, hot=0.1, topology=layout)
    change_last_byte(tmp_path / file)
    with pytest.raises(PartFileError, match=r"\.npy: its checksum"):
        sh.distributed.open(tmp_path, checksums=False)
