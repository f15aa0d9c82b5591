"""Parts hold the same graph and rows under other numbers; a run that was stopped goes on, or starts over."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

import shorthaul as sh
from shorthaul.distributed import partition
from shorthaul.distributed.partition import journal as journal_module
from shorthaul.distributed.partition.journal import alone_in
from shorthaul.distributed.partition.manifest import JOURNAL, MANIFEST, Manifest
from shorthaul.distributed.partition.mapped import map_file, map_topology
from shorthaul.errors import PartFileError, PartitionError
from shorthaul.graphs import RelationalGraph
from shorthaul.tensors.tables.disk.disk_table import DiskTable
from tests.distributed.part_folders import cut_homogeneous, drawn_graph, features_of, typed_graph


def edges_of(graph: RelationalGraph, originals: torch.Tensor | None = None) -> set[tuple[int, ...]]:
    """(source, target, relation, edge id) under the first graph's ids."""
    index = graph.by_target()
    targets = torch.repeat_interleave(torch.arange(graph.num_nodes), index.pointers.diff().long())
    sources = index.sources.long()
    if originals is not None:
        sources, targets = originals[sources], originals[targets]
    columns = (sources, targets, index.relations.long(), index.edges.long())
    return set(zip(*(each.tolist() for each in columns), strict=True))


@pytest.mark.parametrize("method", ["range", "stream"])
def test_the_graph_is_the_same_under_other_numbers(tmp_path: Path, method: str) -> None:
    graph = typed_graph()
    x = {"paper": features_of(30), "author": features_of(20, 3)}
    partition(graph, tmp_path, 3, features=x, method=method)
    manifest = Manifest.read(tmp_path)
    cut = map_topology(tmp_path, manifest)
    originals = torch.cat(
        [
            map_file(tmp_path / "originals" / f"{name}.npy").long() + graph.nodes_of(name).start
            for name in graph.node_types
        ]
    )
    assert edges_of(cut, originals) == edges_of(graph)
    assert cut.relations == graph.relations
    assert cut.nodes_per_type == graph.nodes_per_type
    for name, given in x.items():
        parts = [map_file(tmp_path / f"part-{part}" / f"{name}.features.npy") for part in range(3)]
        sizes = [len(manifest.book.rows(name, part)) for part in range(3)]
        assert [len(each) for each in parts] == sizes
        own = originals[list(cut.nodes_of(name))] - graph.nodes_of(name).start
        assert torch.cat(parts).equal(given[own])


def test_a_graph_on_disk_makes_the_same_parts(tmp_path: Path) -> None:
    graph = drawn_graph()
    graph.save(tmp_path / "graph")
    sh.save_features(tmp_path / "x.npy", features_of(60))
    options = {"seeds": torch.arange(10), "hot": 0.1, "method": "stream"}
    partition(graph, tmp_path / "a", 2, features=features_of(60), **options)
    partition(
        tmp_path / "graph", tmp_path / "b", 2, features=sh.open(tmp_path / "x.npy"), **options
    )
    a, b = Manifest.read(tmp_path / "a"), Manifest.read(tmp_path / "b")
    assert a.files == b.files
    assert a.version == b.version


def test_hot_rows_are_rows_of_the_table(tmp_path: Path) -> None:
    made = cut_homogeneous(tmp_path, 2, hot=0.2)
    ids = map_file(tmp_path / "hot" / "node.ids.npy")
    originals = map_file(tmp_path / "originals" / "node.npy").long()
    assert len(ids) == 12
    assert (ids.diff() > 0).all()
    assert map_file(tmp_path / "hot" / "node.features.npy").equal(
        made["features"][originals[ids.long()]]
    )


def test_bfloat16_tables_are_kept_as_they_are(tmp_path: Path) -> None:
    features = features_of(60).bfloat16()
    partition(drawn_graph(), tmp_path, 2, features=features, method="range")
    parts = [map_file(tmp_path / f"part-{part}" / "node.features.safetensors") for part in (0, 1)]
    assert torch.cat(parts).equal(features)


def test_the_report_counts(tmp_path: Path) -> None:
    graph = drawn_graph()
    report = partition(
        graph, tmp_path, 2, features=features_of(60), method="range", fan_outs=(-1,), batch_size=60
    )
    index = graph.by_target()
    targets = torch.repeat_interleave(torch.arange(60), index.pointers.diff().long())
    for part, of_part in enumerate(report.parts):
        own = (targets >= 30) == bool(part)
        elsewhere = (index.sources >= 30) != bool(part)
        assert of_part.nodes == 30
        assert of_part.edges == int(own.sum())
        assert of_part.cut_edges == int((own & elsewhere).sum())
        assert of_part.table_bytes == 30 * 6 * 4
        # A batch of all its nodes with all neighbors: what it reads is known.
        remote = index.sources[own & elsewhere].unique()
        assert of_part.remote_rows_per_batch == len(remote)
    assert "2 parts" in str(report.table().title)


class _StoppedError(Exception):
    pass


def test_a_stopped_run_is_refused_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    whole = tmp_path / "whole"
    cut_homogeneous(whole, 3, hot=0.1)
    expected = Manifest.read(whole)
    real = journal_module.save_features
    for stop_at in (1, 4, len(expected.files)):
        folder = tmp_path / f"stopped{stop_at}"
        written: list[str] = []

        def stopping(path, *arguments, stop_at=stop_at, written=written, **options):
            if len(written) == stop_at:
                raise _StoppedError
            written.append(path.name)
            return real(path, *arguments, **options)

        monkeypatch.setattr(journal_module, "save_features", stopping)
        with pytest.raises(_StoppedError):
            cut_homogeneous(folder, 3, hot=0.1)
        with pytest.raises(PartFileError, match="was begun here and did not end"):
            Manifest.read(folder)
        second: list[str] = []

        def counting(path, *arguments, second=second, **options):
            second.append(path.name)
            return real(path, *arguments, **options)

        monkeypatch.setattr(journal_module, "save_features", counting)
        cut_homogeneous(folder, 3, hot=0.1)
        assert len(second) == len(expected.files) + 1 - stop_at  # and where nodes were placed
        assert Manifest.read(folder) == expected
        assert not (folder / JOURNAL).exists()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file's bytes, and when it was written."""
    return {
        str(each.relative_to(folder)): (each.read_bytes(), each.stat().st_mtime_ns)
        for each in folder.rglob("*")
        if each.is_file() and each.name != ".lock"
    }


def test_another_wish_removes_whole_parts_only_when_it_is_told_to(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 3)
    before = contents(tmp_path)
    with pytest.raises(PartitionError, match="holds whole parts that were cut otherwise"):
        cut_homogeneous(tmp_path, 2, method="range")
    assert contents(tmp_path) == before
    cut_homogeneous(tmp_path, 2, method="range", start_over=True)
    assert Manifest.read(tmp_path).book.parts == 2
    assert not (tmp_path / "part-2").exists()


def test_another_wish_takes_the_place_of_unfinished_parts(tmp_path: Path, monkeypatch) -> None:
    real = journal_module.save_features

    def stopping(path: Path, *arguments, **options):
        if path.parent.name == "part-2":
            path.write_bytes(b"half")
            raise _StoppedError
        return real(path, *arguments, **options)

    monkeypatch.setattr(journal_module, "save_features", stopping)
    with pytest.raises(_StoppedError):
        cut_homogeneous(tmp_path, 3)
    assert (tmp_path / "part-2").exists()
    cut_homogeneous(tmp_path, 2, method="range")
    assert Manifest.read(tmp_path).book.parts == 2
    assert not (tmp_path / "part-2").exists()


def test_whole_parts_stay_as_they_are(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    before, said = contents(tmp_path), []
    first = Manifest.read(tmp_path).report
    made = cut_homogeneous(tmp_path, 2, tell=said.append)
    assert contents(tmp_path) == before
    assert said == [f"{tmp_path} has these parts already"]
    again = partition(drawn_graph(), tmp_path, 2, fan_outs=(3, 2), batch_size=8, **made)
    assert again.to_dict() == first


def test_a_damaged_file_of_whole_parts_alone_is_written_anew(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    before = contents(tmp_path)
    (tmp_path / "part-1" / "node.features.npy").write_bytes(b"")
    cut_homogeneous(tmp_path, 2)
    after = contents(tmp_path)
    changed = {name for name, (_, when) in after.items() if before[name][1] != when}
    assert changed == {"part-1/node.features.npy", MANIFEST}
    assert {name: data for name, (data, _) in after.items()} == {
        name: data for name, (data, _) in before.items()
    }


@pytest.mark.parametrize("start_over", [False, True])
def test_a_folder_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, start_over: bool
) -> None:
    for name in ("seeds", "work", "hot", "part-time"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(PartitionError, match="holds something else: hot, part-time, seeds and 1 m"):
        cut_homogeneous(tmp_path, 2, start_over=start_over)
    assert contents(tmp_path) == before
    assert not (tmp_path / ".lock").exists()


def test_what_users_put_beside_parts_stays(tmp_path: Path, monkeypatch) -> None:
    cut_homogeneous(tmp_path, 3)
    for name in ("work/mine.txt", "part-2/mine.txt", "part-9/mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    cut_homogeneous(tmp_path, 2, start_over=True)
    for name in ("work/mine.txt", "part-2/mine.txt", "part-9/mine.txt"):
        assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "part-2" / "node.features.npy").exists()
    (tmp_path / "part-2" / "node.features.npy").write_text("mine")
    with pytest.raises(PartitionError, match="is none of them"):
        cut_homogeneous(tmp_path, 3, start_over=True)


def test_a_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    expected = Manifest.read(tmp_path)
    damaged = tmp_path / "part-1" / "node.features.npy"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(PartFileError, match="its checksum is"):
        list(expected.require_checksums(tmp_path, lambda _: True))
    damaged.unlink()
    with pytest.raises(PartFileError, match="the file is missing"):
        expected.require_files(tmp_path, lambda _: True)


@pytest.mark.parametrize("change", ["{", '{"format": 2, "version": ""}', "[]"])
def test_a_description_that_cannot_be_read_is_named(tmp_path: Path, change: str) -> None:
    (tmp_path / MANIFEST).write_text(change)
    with pytest.raises(PartFileError, match=r"parts\.json"):
        Manifest.read(tmp_path)


def test_a_changed_description_is_noticed(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    found = json.loads((tmp_path / MANIFEST).read_text())
    found["offsets"]["node"][1] += 1
    (tmp_path / MANIFEST).write_text(json.dumps(found))
    with pytest.raises(PartFileError, match="changed after it was written"):
        Manifest.read(tmp_path)


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(PartitionError, match="being written by another"):
        cut_homogeneous(tmp_path, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hot": 1.5}, "hot must be a share"),
        ({"fan_outs": (-2,)}, "fan_outs must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"features": torch.zeros(59, 2)}, "for each of 60 nodes"),
        ({"seeds": [60]}, "seed 60 at position 0 is not a node"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, options: dict, said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        partition(drawn_graph(), tmp_path, 2, **options)


def test_memory_does_not_grow_with_edges(tmp_path: Path) -> None:
    """What is held of a graph on disk is one piece of its edges at a time."""
    from shorthaul.graphs.inclusion import target_rows

    graph = drawn_graph(nodes=50, edges=4000)
    graph.save(tmp_path / "graph")
    opened = RelationalGraph.open(tmp_path / "graph")
    sizes = [len(each.sources) for each in target_rows.TargetRows(opened, 500).pieces()]
    assert max(sizes) <= 500
    assert sum(sizes) == 4000


@pytest.mark.parametrize("has_checksums", [True, False])
def test_cutting_reads_no_more_than_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checksums: bool
) -> None:
    """Also where the graph was opened by the caller; one that was saved without checksums is added up."""
    from shorthaul.distributed.partition import asked, report, writing
    from shorthaul.graphs.inclusion import target_rows

    drawn_graph(nodes=50, edges=4000).save(tmp_path / "graph")
    if not has_checksums:
        described = json.loads((tmp_path / "graph" / "graph.json").read_text())
        del described["checksums"]
        (tmp_path / "graph" / "graph.json").write_text(json.dumps(described))
    for module in (asked, report, writing):
        monkeypatch.setattr(module, "PIECE_EDGES", 500)
    monkeypatch.setattr(target_rows.TargetRows.__init__, "__defaults__", (500,))
    read: dict[str, list[int]] = {}
    real = DiskTable.gather

    def gather(self: DiskTable, ids: torch.Tensor, *more: object) -> torch.Tensor:
        read.setdefault(Path(self.layout.path).stem, []).append(len(ids))
        return real(self, ids, *more)

    real_read = DiskTable.read

    def read_stretch(self: DiskTable, start: int, stop: int) -> torch.Tensor:
        read.setdefault(Path(self.layout.path).stem, []).append(stop - start)
        return real_read(self, start, stop)

    monkeypatch.setattr(DiskTable, "gather", gather)
    monkeypatch.setattr(DiskTable, "read", read_stretch)
    partition(RelationalGraph.open(tmp_path / "graph"), tmp_path / "parts", 2)
    assert max(max(each) for each in read.values()) <= 500
    assert sum(read["by_target.sources"]) >= 4000
    edges = read.keys() & {"source", "target", "relation"}
    assert edges == (set() if has_checksums else {"source", "target", "relation"})


NOT_OF_PARTS = [
    "",
    ".",
    "..",
    "../mine.txt",
    "mine.txt",
    "topology",
    "parts.json/x",
    "x\0/y",
    "\ud800/y",
    "0" * 5000,
    3,
]


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": {"topology/pointers.npy": "x", "topology/edges.npy": [1]}},
        {"files": {name: [1, 2] for name in NOT_OF_PARTS if isinstance(name, str)}},
        {"begun": 5},
        {"begun": [["x"], {}, None]},
        {"begun": NOT_OF_PARTS},
        {"asked": [], "begun": NOT_OF_PARTS},
    ],
    ids=["no files", "no sums", "files", "no list", "no names", "names", "asked"],
)
def test_a_damaged_journal_is_an_error_or_is_gone_on_from(tmp_path: Path, change: dict) -> None:
    folder = tmp_path / "parts"
    cut_homogeneous(folder, 2)
    expected = Manifest.read(folder).files
    whole = json.loads((folder / MANIFEST).read_text())
    facts = {"asked": whole["asked"], "files": whole["files"], "begun": sorted(whole["files"])}
    (folder / JOURNAL).write_text(json.dumps({**facts, **change}))
    (folder / MANIFEST).unlink()
    for path in (tmp_path / "mine.txt", folder / "mine.txt"):
        path.write_text("mine")
    with contextlib.suppress(PartitionError):
        cut_homogeneous(folder, 2)
        assert Manifest.read(folder).files == expected
    assert [path.read_text() for path in (tmp_path / "mine.txt", folder / "mine.txt")] == [
        "mine"
    ] * 2


@pytest.mark.parametrize("name", [JOURNAL, MANIFEST])
def test_a_description_that_is_too_deep_is_an_error(tmp_path: Path, name: str) -> None:
    cut_homogeneous(tmp_path, 2)
    (tmp_path / MANIFEST).unlink()
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(PartitionError, match="holds something else"):
        cut_homogeneous(tmp_path, 2)
    with pytest.raises(PartFileError):
        Manifest.read(tmp_path)
