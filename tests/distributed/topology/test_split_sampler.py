"""A split topology draws what the whole one draws: edge for edge, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shorthaul as sh
from shorthaul.errors import RankSetupError, RowArgumentError
from tests.distributed.part_folders import (
    cut_homogeneous,
    features_of,
    typed_graph,
)
from tests.distributed.rank_processes import run_ranks

FANS = (3, 2)
OF_RELATIONS = ({"writes": 2, "cites": -1, "has author": 1}, 3)


def cut_typed(folder: Path, parts: int, **options: Any) -> None:
    sh.distributed.partition(
        typed_graph(),
        folder,
        parts,
        features={"paper": features_of(30), "author": features_of(20, 3, 2)},
        seeds={"paper": torch.arange(0, 30, 2), "author": torch.arange(5)},
        **options,
    )


def columns_of(sample: Any) -> list[list[int]]:
    """Everything that a batch's blocks say, in their order."""
    return [
        each.tolist()
        for block in sample.blocks
        for each in (
            block.source_nodes,
            block.pointers,
            block.sources,
            block.edges,
            block.relations,
            block.index.relations[block.positions.long()],
        )
    ]


def see(rank: int, folder: Path, options: dict, fan_outs: Any) -> list[Any]:
    """The batches of two epochs, as they are on this rank."""
    parts = sh.distributed.open(folder, **{"timeout_seconds": 20.0, **options})
    tables = {
        name: parts.features(name)
        for name in parts.book.node_types
        if "features" in parts.manifest.tables.get(name, ())
    }
    loader = sh.distributed.MiniBatchLoader(
        parts, fan_outs=fan_outs, batch_size=7, features=tables, shuffle=True, seed=3
    )
    seen = []
    for _ in range(2):
        for batch in loader:
            rows = batch.features
            if isinstance(rows, dict):
                rows = {name: each.tolist() for name, each in rows.items()}
            else:
                rows = rows.tolist()
            seen.append((batch.seeds.tolist(), columns_of(batch), rows, batch.global_seeds))
    return seen


@pytest.mark.parametrize(
    ("ranks", "shares_machine"),
    [
        (1, True),
        (2, False),
        (2, True),
        pytest.param(3, False, marks=pytest.mark.slow),
        pytest.param(4, False, marks=pytest.mark.slow),
    ],
)
def test_samples_are_those_of_the_replicated_topology(
    tmp_path: Path, ranks: int, shares_machine: bool
) -> None:
    cut_homogeneous(tmp_path, 4, hot=0.1)
    both = [
        run_ranks(see, ranks, tmp_path, tmp_path, {**shared, "topology": topology}, FANS)
        for topology in ("replicated", "split")
        for shared in [{"shares_machine": shares_machine}]
    ]
    assert both[0] == both[1]
    assert any(columns[3] for _, columns, _, _ in both[1][0])


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "fan_outs",
    [pytest.param((4, 3), marks=pytest.mark.slow), OF_RELATIONS],
    ids=["all relations", "each relation"],
)
def test_typed_samples_are_those_of_the_replicated_topology(
    tmp_path: Path, ranks: int, fan_outs: Any
) -> None:
    cut_typed(tmp_path, 4)
    both = [
        run_ranks(
            see, ranks, tmp_path, tmp_path, {"topology": name, "shares_machine": False}, fan_outs
        )
        for name in ("replicated", "split")
    ]
    assert both[0] == both[1]


def read_edges(folder: Path) -> list[Any]:
    """Degrees and the edge columns of the whole graph, by the files of either layout."""
    parts = sh.distributed.open(folder, topology="split")
    nodes = torch.arange(parts.book.nodes, dtype=parts.described_graph.index_dtype)
    ends = parts.held_rows.find(nodes, by_relation=False).ends.view(-1, 2)
    positions = torch.arange(int(ends[-1, 1]), dtype=nodes.dtype)
    bounds = [*ends[parts.held_rows.split(nodes)[:-1], 0].tolist(), len(positions)]
    columns = parts.held_rows.read(positions, bounds)
    return [each.tolist() for each in (ends.diff(), *columns)]


def test_parts_that_were_cut_apart_hold_the_same_edges(tmp_path: Path) -> None:
    for name in ("replicated", "split"):
        cut_typed(tmp_path / name, 3, topology=name)
    whole, apart = (read_edges(tmp_path / name) for name in ("replicated", "split"))
    assert whole == apart
    assert not (tmp_path / "split" / "topology").exists()
    assert not (tmp_path / "split" / "work").exists()


def test_a_machine_needs_the_edges_of_its_own_parts_alone(tmp_path: Path) -> None:
    cut_typed(tmp_path / "whole", 2)
    cut_typed(tmp_path / "split", 2, topology="split")
    expected = run_ranks(
        see, 2, tmp_path, tmp_path / "whole", {"shares_machine": False}, OF_RELATIONS
    )
    assert run_ranks(see_own, 2, tmp_path, tmp_path / "split") == expected


def see_own(rank: int, folder: Path) -> list[Any]:
    """The same batches from a copy that lacks what is another rank's."""
    import shutil

    own = folder.parent / f"copy-{rank}"
    shutil.copytree(folder, own)
    for name in ("topology", "part"):
        shutil.rmtree(own / f"{name}-{1 - rank}")
    return see(rank, own, {"shares_machine": False}, OF_RELATIONS)


def test_what_takes_too_much_memory_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shorthaul.distributed.topology import opening

    cut_homogeneous(tmp_path, 2)
    manifest = sh.distributed.open(tmp_path).manifest
    for room_bytes, expected in ((2, "replicated"), (-2, "split")):
        bound = 2 * manifest.topology_bytes + room_bytes
        monkeypatch.setattr(opening, "usable_bytes", lambda bound=bound: bound)
        assert sh.distributed.open(tmp_path).topology == expected
        assert sh.distributed.open(tmp_path, topology="replicated").topology == "replicated"


def open_beside_a_small_machine(rank: int, folder: Path) -> str:
    from shorthaul.distributed.topology import opening

    opening.usable_bytes = lambda: 2**10 if rank else 2**40  # type: ignore[assignment]
    return sh.distributed.open(folder).topology


def test_one_small_machine_splits_the_topology_of_all(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    assert run_ranks(open_beside_a_small_machine, 2, tmp_path, tmp_path) == ["split", "split"]


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, topology="split")
    with pytest.raises(RowArgumentError, match=r"cut with topology='split'.*got 'replicated'"):
        sh.distributed.open(tmp_path, topology="replicated")
    with pytest.raises(RowArgumentError, match="one of auto, replicated, split, got 'whole'"):
        sh.distributed.open(tmp_path, topology="whole")  # type: ignore[arg-type]
    parts = sh.distributed.open(tmp_path)
    assert (parts.topology, len(parts.relations)) == ("split", 1)
    with pytest.raises(RankSetupError, match=r'(?s)each rank holds .*topology="replicated"'):
        _ = parts.graph
    with pytest.raises(sh.errors.PartitionError, match="topology must be one of replicated, split"):
        cut_homogeneous(tmp_path / "other", 2, topology="whole")


def sample_plainly(folder: Path, monkeypatch: pytest.MonkeyPatch, fan_outs: Any) -> list[Any]:
    from shorthaul.graphs.sampling import one_hop

    with monkeypatch.context() as patch:
        patch.setattr(one_hop, "can_use_kernels", lambda _: False)
        return see(0, folder, {"topology": "split"}, fan_outs)


@pytest.mark.parametrize("fan_outs", [(4, 0, -1), OF_RELATIONS], ids=["all", "each"])
def test_without_a_compiler_the_same_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_outs: Any
) -> None:
    cut_typed(tmp_path, 2)
    plainly = sample_plainly(tmp_path, monkeypatch, fan_outs)
    assert plainly == see(0, tmp_path, {"topology": "replicated"}, fan_outs)


def count_bytes(rank: int, folder: Path) -> tuple[Any, list[tuple[int, int]]]:
    """What sampling cost, and for each hop the nodes that this rank asked for and their neighbors."""
    parts = sh.distributed.open(folder, topology="split", shares_machine=False)
    loader = sh.distributed.MiniBatchLoader(parts, fan_outs=FANS, batch_size=7, seed=3)
    asked = []
    own = parts.book.rows("node", rank)
    for batch in loader:
        for block in batch.blocks:
            is_far = (block.target_nodes < own.start) | (block.target_nodes >= own.stop)
            asked.append((int(is_far.sum()), int(block.degrees()[is_far].sum())))
    return loader.sampler.traffic, asked


def test_bytes_are_those_of_the_formula(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, method="range")
    found = run_ranks(count_bytes, 2, tmp_path, tmp_path)
    (one, one_asked), (other, other_asked) = found
    for traffic, asked, served in ((one, one_asked, other_asked), (other, other_asked, one_asked)):
        nodes, edges = (sum(column) for column in zip(*asked, strict=True))
        their_nodes, their_edges = (sum(column) for column in zip(*served, strict=True))
        header_bytes = 32 * len(asked)
        assert traffic.received_bytes == header_bytes + 4 * their_nodes + 4 * nodes + 8 * edges
        assert traffic.sent_bytes == header_bytes + 4 * nodes + 4 * their_nodes + 8 * their_edges
        assert (traffic.far_rows, traffic.served_rows) == (nodes, their_nodes)
        assert traffic.exchanges == len(asked)
    assert min(one.far_rows, other.far_rows) > 0


def to_types(rank: int, folder: Path) -> list[dict[tuple[str, str, str], list[list[int]]]]:
    parts = sh.distributed.open(folder, topology="split")
    loader = sh.distributed.MiniBatchLoader(parts, fan_outs=OF_RELATIONS, batch_size=7)
    return [
        {tuple(name): each.tolist() for name, each in batch.to_hetero().edge_index_dict.items()}
        for batch in loader
    ]


def test_batches_come_apart_by_types(tmp_path: Path) -> None:
    cut_typed(tmp_path, 2)
    parts = sh.distributed.open(tmp_path)
    loader = sh.MiniBatchLoader(
        parts.graph, seeds=parts_seeds(parts), fan_outs=OF_RELATIONS, batch_size=7
    )
    expected = [
        {tuple(name): each.tolist() for name, each in batch.to_hetero().edge_index_dict.items()}
        for batch in loader
    ]
    assert to_types(0, tmp_path) == expected


def parts_seeds(parts: sh.distributed.Parts) -> torch.Tensor:
    return torch.cat([parts.seeds(name) + parts.book.starts[name] for name in parts.manifest.seeds])
