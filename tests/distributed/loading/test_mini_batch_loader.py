"""What N ranks see together is what one sees alone: samples, rows, labels, steps, gradients."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

import shorthaul as sh
from tests.distributed.part_folders import cut_homogeneous, features_of, typed_graph
from tests.distributed.rank_processes import run_failing_ranks, run_ranks

FANS = (3, 2)


def open_loader(
    folder: Path, seeds: Any = None, opened: Any = None, **options: Any
) -> sh.distributed.MiniBatchLoader:
    parts = sh.distributed.open(
        folder, **{"shares_machine": False, "timeout_seconds": 20.0, **(opened or {})}
    )
    tables = {"features": parts.features(), "labels": parts.labels()}
    given = {"batch_size": 7, "shuffle": True, "seed": 3, **tables, **options}
    return sh.distributed.MiniBatchLoader(parts, seeds, FANS, **given)


def edges_of(batch: sh.MiniBatch) -> list[set[tuple[int, int, int]]]:
    """For each block (source, target, edge), under the parts' global ids."""
    found = []
    for block in batch.blocks:
        sources, targets = block.edge_index()
        nodes = block.source_nodes
        rows = (nodes[sources], nodes[targets], block.edges)
        found.append(set(zip(*(each.tolist() for each in rows), strict=True)))
    return found


def see(rank: int, folder: Path, options: dict) -> list[list[Any]]:
    loader = open_loader(folder, **options)
    table = sh.distributed.open(folder).features() if rank < 0 else None
    assert table is None
    epochs = []
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch.labels is not None
            rows = dict(zip(batch.input_nodes.tolist(), batch.features.tolist(), strict=True))
            labels = dict(zip(batch.seeds.tolist(), batch.labels.tolist(), strict=True))
            seen.append((labels, edges_of(batch), rows, batch.global_seeds))
        assert len(seen) == len(loader)
        epochs.append(seen)
    return epochs


def see_alone(folder: Path, seeds: Any = None) -> list[list[Any]]:
    """The same with the loader for one machine."""
    parts = sh.distributed.open(folder)
    everything = torch.arange(60)
    loader = sh.MiniBatchLoader(
        parts.graph,
        parts.features()[everything],
        parts.labels()[everything],
        parts.seeds() if seeds is None else seeds,
        batch_size=7,
        fan_outs=FANS,
        shuffle=True,
        seed=3,
        prefetch=0,
    )
    return [
        [
            (
                dict(zip(batch.seeds.tolist(), batch.labels.tolist(), strict=True)),
                edges_of(batch),
                dict(zip(batch.input_nodes.tolist(), batch.features.tolist(), strict=True)),
                len(batch.seeds),
            )
            for batch in loader
        ]
        for _ in range(2)
    ]


def together(shares: list[Any]) -> Any:
    labels: dict[int, int] = {}
    rows: dict[int, list[float]] = {}
    for share, _, own_rows, _ in shares:
        assert not labels.keys() & share.keys()
        labels |= share
        rows |= own_rows
    blocks = [set().union(*each) for each in zip(*(share[1] for share in shares), strict=True)]
    return labels, blocks, rows, shares[0][3]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        pytest.param(
            *(4, {"prefetch": 0, "look_ahead": 0, "kept_bytes": 0}), marks=pytest.mark.slow
        ),
        (4, {"prefetch": 5, "kept_bytes": 200, "prefetch_bytes": 300}),
        (2, {"seeds": torch.tensor([5, 5, 41, 5, 7, 5, 8, 41, 41, 2, 2, 59, 58, 57, 40, 33])}),
    ],
)
def test_ranks_together_see_what_one_sees(tmp_path: Path, ranks: int, options: dict) -> None:
    cut_homogeneous(tmp_path, 4, hot=0.1)
    expected = see_alone(tmp_path, options.get("seeds"))
    found = run_ranks(see, ranks, tmp_path, tmp_path, options)
    for epoch in range(2):
        for step, whole in enumerate(expected[epoch]):
            shares = [of_rank[epoch][step] for of_rank in found]
            assert together(shares) == whole
            sizes = [len(labels) for labels, *_ in shares]
            assert max(sizes) - min(sizes) <= 1
    (alone,) = [see(0, tmp_path, options)]
    assert [[each[:3] for each in epoch] for epoch in alone] == [
        [each[:3] for each in epoch] for epoch in expected
    ]


def count_traffic(rank: int, folder: Path, options: dict) -> Any:
    loader = open_loader(folder, **options)
    for _ in range(3):
        for _ in loader:
            pass
    return loader.features.tables["node"].report()


def test_rows_that_come_again_are_fetched_once(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2, method="range")
    fresh = run_ranks(count_traffic, 2, tmp_path, tmp_path, {"kept_bytes": 0, "batch_size": 4})
    kept = run_ranks(count_traffic, 2, tmp_path, tmp_path, {"batch_size": 4, "look_ahead": 100})
    for one, other in zip(fresh, kept, strict=True):
        assert one.kept_rows == 0
        assert one.far_rows == other.far_rows + other.kept_rows
        assert other.far_rows <= 30  # each row of the other rank at most once
        assert one.far_rows > other.far_rows > 0


def take_seeds(rank: int, folder: Path, seeds: list[Any]) -> tuple[int, list[int]]:
    loader = open_loader(folder, torch.tensor(seeds[rank], dtype=torch.int64), batch_size=4)
    steps = [batch.seeds.tolist() for batch in loader]
    return len(steps), sorted(itertools.chain.from_iterable(steps))


def test_ranks_with_unequally_many_seeds_make_equally_many_steps(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 3)
    seeds = [list(range(11)), [], [40]]
    found = run_ranks(take_seeds, 3, tmp_path, tmp_path, seeds)
    assert {steps for steps, _ in found} == {3}
    assert sorted(itertools.chain.from_iterable(own for _, own in found)) == [*range(11), 40]


def test_seeds_that_overlap_are_refused_on_all_ranks(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(take_seeds, 2, tmp_path, tmp_path, [[1, 2, 3], [3, 4]]):
        assert found.kind == "RankDisagreementError"
        assert "the seeds, which overlap: rank 0 has 3 seeds; rank 1 has 2 seeds" in found.text
    one, other = run_failing_ranks(take_seeds, 2, tmp_path, tmp_path, [[1], [60]])
    assert (one.kind, other.kind) == ("PeerError", "SeedRangeError")


def leave_early(rank: int, folder: Path, options: dict) -> list[int]:
    loader = open_loader(folder, **options)
    for batch in loader:
        if batch.number == 1:
            break
    assert position_of(loader) == (0, 2)  # what a checkpoint goes on with
    first = [len(batch.seeds) for batch in loader]
    assert position_of(loader) == (2, 0)
    return first


def position_of(loader: sh.distributed.MiniBatchLoader) -> tuple[int | str, int | str]:
    state = loader.state_dict()
    return state["epoch"], state["step"]


def test_a_loop_that_all_ranks_leave_early_may_begin_again(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for options in ({}, {"prefetch": 4, "prefetch_bytes": 1}):
        for sizes in run_ranks(leave_early, 2, tmp_path, tmp_path, options):
            assert len(sizes) == 5


def loop_within_a_loop(rank: int, folder: Path) -> list[int]:
    loader = open_loader(folder, prefetch=4, prefetch_bytes=1)
    first = iter(loader)
    next(first)
    within = [batch.number for batch in loader]
    with pytest.raises(sh.errors.SamplingError, match="this loop over the loader has ended"):
        next(first)
    return within


def test_a_second_loop_ends_the_first(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for numbers in run_ranks(loop_within_a_loop, 2, tmp_path, tmp_path):
        assert numbers == [0, 1, 2, 3, 4]


def test_an_error_in_a_loop_costs_no_batch_of_a_checkpoint(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    loader = open_loader(tmp_path)
    with contextlib.suppress(KeyboardInterrupt):
        for batch in loader:
            if batch.number == 2:
                raise KeyboardInterrupt
    other = open_loader(tmp_path)
    other.load_state_dict(loader.state_dict())
    assert [batch.number for batch in other] == [3, 4]


def test_a_position_that_was_loaded_stays(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    loader = open_loader(tmp_path)
    loop = iter(loader)
    next(loop)
    loader.load_state_dict({**loader.state_dict(), "epoch": 4, "step": 3})
    with pytest.raises(sh.errors.SamplingError, match="load_state_dict set its position"):
        next(loop)
    del loop
    assert position_of(loader) == (4, 3)
    assert [batch.number for batch in loader] == [3, 4]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 4}, "a loader's seed: it has 3, and here is 4"),
        ({"batch_size": 8}, "a loader's batch_size: it has 7, and here is 8"),
        ({"shuffle": False}, "a loader's shuffle"),
        ({"drop_last": True}, "a loader's drop_last"),
        ({"seeds": torch.arange(30)}, "a loader's seeds: it has 30 \\("),
    ],
)
def test_a_state_of_another_loader_is_refused(tmp_path: Path, change: dict, said: str) -> None:
    cut_homogeneous(tmp_path, 2)
    state = open_loader(tmp_path).state_dict()
    with pytest.raises(sh.errors.CheckpointError, match=said):
        open_loader(tmp_path, **change).load_state_dict(state)


def test_a_state_of_other_parts_or_of_no_batch_is_refused(tmp_path: Path) -> None:
    for name, method in (("a", "stream"), ("b", "range")):
        cut_homogeneous(tmp_path / name, 2, method=method)
    seeds = torch.arange(60)
    one, other = (open_loader(tmp_path / name, seeds) for name in ("a", "b"))
    with pytest.raises(sh.errors.CheckpointError, match="a loader's numbering"):
        other.load_state_dict(one.state_dict())
    for wrong in ({"step": 9}, {"step": -1}, {"epoch": None}):
        with pytest.raises(sh.errors.CheckpointError, match="a loader's position: it has step"):
            one.load_state_dict({**one.state_dict(), **wrong})
    with pytest.raises(sh.errors.CheckpointError, match="a loader's seed: it has None"):
        one.load_state_dict({})


def wait_for_a_slow_loop(rank: int, folder: Path, waits: Path) -> int:
    """Rank 1 has much room and rank 0 none; rank 0's loop goes on when rank 1 has what it can have."""
    loader = open_loader(folder, opened={"timeout_seconds": 2.0}, batch_size=4, prefetch=3)
    real = loader.features.count_bytes
    loader.features.count_bytes = lambda asks: real(asks) * (1 if rank else 10**12)  # type: ignore[method-assign]
    count = 0
    for _ in loader:
        if count == 0 and rank == 1:
            loader._line.submit("what was asked for", lambda _: None).result()
            waits.touch()
        while count == 0 and rank == 0 and not waits.exists():
            loader._line.submit("what was asked for", lambda _: None).result()
        count += 1
    return count


def test_a_rank_with_room_does_not_wait_for_one_without(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path / "parts", 2)
    counts = run_ranks(wait_for_a_slow_loop, 2, tmp_path, tmp_path / "parts", tmp_path / "waits")
    assert counts == [8, 8]


def differ(rank: int, folder: Path) -> None:
    open_loader(folder, batch_size=4 + rank)


def test_loaders_with_other_arguments_are_told(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(differ, 2, tmp_path, tmp_path):
        assert found.kind == "RankDisagreementError"
        assert "batch_size 4" in found.text
        assert "batch_size 5" in found.text


def go_on(rank: int, folder: Path, state: Any) -> tuple[list[Any], Any]:
    loader = open_loader(folder)
    if state is None:
        batches = iter(loader)
        assert loader.state_dict()["epoch"] == 0
        seen = [next(batches).seeds.tolist() for _ in range(2)]
        return seen, loader.state_dict()
    loader.load_state_dict(state)
    return [batch.seeds.tolist() for _ in range(2) for batch in loader], None


def test_a_loader_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 4)
    expected = [[sorted(labels) for labels, *_ in epoch] for epoch in see_alone(tmp_path)]
    begun = run_ranks(go_on, 4, tmp_path, tmp_path, None)
    state = begun[0][1]
    assert (state["epoch"], state["step"], state["seed"]) == (0, 2, 3)
    ended = run_ranks(go_on, 2, tmp_path, tmp_path, state)
    for found, wanted in (
        ([seen for seen, _ in begun], expected[0][:2]),
        ([seen for seen, _ in ended], expected[0][2:] + expected[1]),
    ):
        for step, seeds in enumerate(wanted):
            shares = [of_rank[step] for of_rank in found]
            assert sorted(itertools.chain.from_iterable(shares)) == seeds


def fail_to_draw(rank: int, folder: Path) -> int:
    loader = open_loader(folder, prefetch=0, look_ahead=0)
    if rank == 1:
        real = loader.sampler.sample

        def sample(seeds: Any, *, number: int) -> Any:
            if number & 0xFFFF == 2:
                raise MemoryError("no memory for a sample")
            return real(seeds, number=number)

        loader.sampler.sample = sample  # type: ignore[method-assign]
    count = 0
    for _ in loader:
        count += 1
    return count


def test_a_rank_that_cannot_draw_tells_the_others(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(fail_to_draw, 2, tmp_path, tmp_path)
    assert (one.kind, other.kind) == ("PeerError", "MemoryError")
    assert "batch 2 of epoch 0" in one.text
    assert "rank 1 (part 1): MemoryError: no memory for a sample" in one.text


def typed_rows(rank: int, folder: Path) -> list[Any]:
    parts = sh.distributed.open(folder, shares_machine=False)
    tables = {each: parts.features(each) for each in ("author", "paper")}
    loader = sh.distributed.MiniBatchLoader(
        parts, ("paper", torch.arange(30)), (2, 2), 8, features=tables
    )
    seen = []
    for batch in loader:
        assert batch.type_positions is not None
        for kind, rows in batch.features.items():
            nodes = batch.input_nodes[batch.type_positions[kind]] - parts.book.starts[kind]
            seen.append((kind, nodes.tolist(), rows.tolist()))
    return seen


def test_types_have_tables_of_their_own(tmp_path: Path) -> None:
    x = {"paper": features_of(30), "author": features_of(20, 3)}
    sh.distributed.partition(typed_graph(), tmp_path, 3, features=x)
    parts = sh.distributed.open(tmp_path)
    true = {kind: x[kind][parts.originals(kind).long()] for kind in x}
    for seen in run_ranks(typed_rows, 3, tmp_path, tmp_path):
        assert {kind for kind, *_ in seen} == {"author", "paper"}
        for kind, nodes, rows in seen:
            assert true[kind][nodes].tolist() == rows


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(12, 8), nn.Linear(16, 5)])

    def forward(self, batch: sh.MiniBatch) -> torch.Tensor:
        x = batch.features.double()
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer(torch.cat([x[: block.num_targets], block.reduce(x, "mean")], 1)).relu()
        return x


def train(rank: int, folder: Path) -> list[float]:
    loader = open_loader(folder)
    model: nn.Module = Sage().double()
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(batch), batch.labels, reduction="sum")
            (losses * batch.loss_scale).backward()
            optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def test_training_is_that_of_one_process(tmp_path: Path) -> None:
    """Sums over ranks are sums in another order, so weights are equal but for float64's rounding."""
    cut_homogeneous(tmp_path, 4)
    alone = torch.tensor(train(0, tmp_path), dtype=torch.float64)
    for ranks in (2, 4):
        for found in run_ranks(train, ranks, tmp_path, tmp_path):
            torch.testing.assert_close(
                torch.tensor(found, dtype=torch.float64), alone, rtol=1e-9, atol=1e-11
            )


def make_a_loader_for_each_epoch(rank: int, folder: Path) -> list[tuple[int, int]]:
    """Process groups and threads after each epoch: that the loader is forgotten is enough."""
    parts = sh.distributed.open(folder, shares_machine=False, timeout_seconds=20.0)
    features, seen = parts.features(), []
    for number in range(3):
        loader = sh.distributed.MiniBatchLoader(parts, None, FANS, 7, features=features)
        for batch in loader:
            if batch.number == number:
                break
        del loader
        seen.append(count_what_lives(("loader", "drawing")))
    with parts, sh.distributed.MiniBatchLoader(parts, None, FANS, 7, features=features) as loader:
        assert len(list(loader)) == 5
    seen.append(count_what_lives(("loader", "drawing", "parts", "table")))
    for ask in (lambda: next(iter(loader)), lambda: features[torch.arange(3)], parts.features):
        with pytest.raises(sh.errors.RankSetupError, match="was closed, and is asked for more"):
            ask()
    return seen


def count_what_lives(names: tuple[str, ...]) -> tuple[int, int]:
    """Groups and threads when threads of such names have ended, which nobody keeps from it."""
    for each in threading.enumerate():
        if each.name.startswith(tuple(f"shorthaul {name}" for name in names)):
            each.join(20)
    living = [each for each in threading.enumerate() if each.name.startswith("shorthaul")]
    return len(distributed_c10d._world.pg_map), len(living)


def test_a_loader_for_each_epoch_leaves_nothing_behind(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for seen in run_ranks(make_a_loader_for_each_epoch, 2, tmp_path, tmp_path):
        # Threads of the parts and the table; groups of these, the default one and the last loader's.
        assert seen == [(4, 2)] * 3 + [(4, 0)]
