"""When a rank fails, every other ends soon, with an error that names it, its part, the place, and what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shorthaul as sh
from shorthaul.errors import RankSetupError
from tests.distributed.part_folders import cut_homogeneous
from tests.distributed.rank_processes import (
    Failed,
    Gone,
    end_ranks,
    free_address,
    run_failing_ranks,
    run_ranks,
    start_ranks,
)

SHORT_SECONDS = 2.0


def open_here(folder: Path, **options: Any) -> sh.distributed.Parts:
    return sh.distributed.open(
        folder, shares_machine=False, **{"timeout_seconds": SHORT_SECONDS, **options}
    )


def ask_out_of_range(rank: int, folder: Path) -> tuple[str, str, int]:
    features = open_here(folder).features()
    ids = torch.tensor([0, 60 if rank == 1 else 5])
    try:
        features[ids]
    except (sh.errors.RowIndexError, sh.errors.PeerError) as error:
        found = type(error).__name__, str(error)
    return *found, len(features[torch.arange(60)])  # all stopped at the same place, so they go on


def test_an_id_out_of_range_on_one_rank_is_known_to_all(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 3)
    found = run_ranks(ask_out_of_range, 3, tmp_path, tmp_path)
    assert [kind for kind, _, _ in found] == ["PeerError", "RowIndexError", "PeerError"]
    assert "rank 1 (part 1): RowIndexError: " in found[0][1]
    assert "60" in found[0][1]
    assert "rank 2 (part 2) could not exchange rows of `node.features`, gather 0" in found[2][1]
    assert [rows for *_, rows in found] == [60, 60, 60]


def open_own(rank: int, folders: list[Path]) -> None:
    open_here(folders[rank])


def damage_part(folder: Path) -> None:
    file = folder / "part-1" / "node.features.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def remove_part(folder: Path) -> None:
    (folder / "part-1" / "node.features.npy").unlink()


def cut_otherwise(folder: Path) -> None:
    shutil.rmtree(folder)
    cut_homogeneous(folder, 2, method="range")


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage_part, "node.features.npy: its checksum is"),
        (remove_part, "node.features.npy: the file is missing"),
        (remove_all, "there are no parts here"),
    ],
)
def test_a_folder_that_is_not_whole_is_named_by_all(tmp_path: Path, change: Any, said: str) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    for each in folders:
        cut_homogeneous(each, 2)
    change(folders[1])
    one, other = run_failing_ranks(open_own, 2, tmp_path, folders)
    assert (one.kind, other.kind) == ("PeerError", "PartFileError")
    assert said in other.text
    assert said in one.text
    assert "rank 1 (" in one.text


def test_another_version_of_the_parts_is_named_by_all(tmp_path: Path) -> None:
    folders = [tmp_path / "0", tmp_path / "1"]
    for each in folders:
        cut_homogeneous(each, 2)
    cut_otherwise(folders[1])
    for found in run_failing_ranks(open_own, 2, tmp_path, folders):
        assert found.kind == "RankDisagreementError"
        assert "ranks do not agree on the parts: rank 0 has version" in found.text
        assert f"of part 1 in {folders[1]}" in found.text


def stop_at_the_third(rank: int, folder: Path, how: str) -> None:
    features = open_here(folder).features()
    for number in range(5):
        if rank == 1 and number == 3:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "hangs":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "leaves":
                return
            raise ZeroDivisionError
        features[torch.arange(60)]


def hang_at_the_third(rank: int, folder: Path, stopped: int) -> None:
    features = open_here(folder).features()
    for number in range(5):
        if rank == stopped and number == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        features[torch.arange(60)]


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_rank_that_is_gone_is_named(tmp_path: Path, how: str) -> None:
    cut_homogeneous(tmp_path, 3)
    started, results = start_ranks(stop_at_the_third, 3, tmp_path, tmp_path, how)
    for each in (started[0], started[2]):
        each.join(50)
        assert not each.is_alive()
    started[1].kill()
    found = end_ranks(started, results)
    assert isinstance(found[1], Gone)
    for rank in (0, 2):
        error = found[rank]
        assert isinstance(error, Failed)
        assert error.kind == "ExchangeError"
        assert f"rank {rank} (part {rank}) could not exchange" in error.text
        assert "rows of `node.features`, gather 3" in error.text
        assert f"rank 1 (part 1, process {started[1].pid} on " in error.text
        assert ("is no longer running" if how == "dies" else "gave no sign of life") in error.text
        assert "rank 0 (part 0, process" not in error.text
        assert "rank 2 (part 2, process" not in error.text
        assert "last checkpoint" in error.text


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_hanging_rank_is_named_also_when_it_holds_the_store(tmp_path: Path, stopped: int) -> None:
    """Calls to a store whose process is stopped never come back."""
    cut_homogeneous(tmp_path, 2)
    started, results = start_ranks(
        hang_at_the_third, 2, tmp_path, tmp_path, stopped, store=free_address()
    )
    living = 1 - stopped
    started[living].join(30)
    has_ended = not started[living].is_alive()
    started[stopped].kill()
    error = end_ranks(started, results)[living]
    assert has_ended
    assert error.kind == "ExchangeError"
    assert f"rank {stopped} (part {stopped}, process {started[stopped].pid} on " in error.text
    assert "gave no sign of life" in error.text
    assert ("torch's store did not answer" in error.text) == (stopped == 0)


def make_after_another_stopped(rank: int, folder: Path) -> None:
    parts = open_here(folder)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    parts.make_line("a test")


def test_a_new_group_is_not_waited_for_without_end(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    started, results = start_ranks(
        make_after_another_stopped, 2, tmp_path, tmp_path, store=free_address()
    )
    started[1].join(30)
    has_ended = not started[1].is_alive()
    started[0].kill()
    error = end_ranks(started, results)[1]
    assert has_ended
    assert "could not exchange setting up a test" in error.text
    assert "nothing came within 2 s" in error.text
    assert "rank 0 (part 0, process" in error.text


def fail_while_serving(rank: int, folder: Path) -> None:
    features = open_here(folder).features(storage="disk")
    if rank == 1:
        file = folder / "part-1" / "node.features.npy"
        os.truncate(file, file.stat().st_size - 1)
    dist.barrier()
    features[torch.arange(60)]


def test_a_rank_that_cannot_read_its_rows_tells_the_others(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(fail_while_serving, 2, tmp_path, tmp_path)
    assert one.kind == "PeerError"
    assert f"had an error: {other.kind}: " in one.text
    assert "part-1" in one.text


def ask_out_of_step(rank: int, folder: Path) -> int:
    parts = open_here(folder)
    features, labels = parts.features(), parts.labels()
    line = features.line
    table = labels if rank == 1 else features
    table.line = line
    with pytest.raises(sh.errors.RankDisagreementError, match=r"rank 1 has rows of `node\.labels`"):
        table[torch.arange(4)]
    return len(features[torch.arange(4)]) if rank != 1 else 0


def test_ranks_that_ask_for_other_things_are_told(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(ask_out_of_step, 2, tmp_path, tmp_path)
    assert isinstance(one, Failed)  # rank 1 did not come a second time
    assert other == 0


def ask_wrongly(rank: int, folder: Path, what: str) -> Any:
    parts = open_here(folder, timeout_seconds=0.0 if (what, rank) == ("parts", 1) else 20.0)
    if what == "table":
        return parts.features(storage="tape" if rank else "mapped")
    if what == "learnable table":
        return sh.distributed.LearnableTable(parts, "term" if rank else "node", 3)
    return sh.distributed.MiniBatchLoader(parts, batch_size=0 if rank else 4)


@pytest.mark.parametrize("what", ["parts", "table", "learnable table", "loader"])
def test_a_wrong_argument_on_one_rank_is_known_to_all(tmp_path: Path, what: str) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(ask_wrongly, 2, tmp_path, tmp_path, what)
    assert one.kind == "PeerError"
    assert f"{other.kind}: {other.text.splitlines()[0]}" in one.text


def open_alone(rank: int, folder: Path) -> None:
    if rank == 0:
        open_here(folder)
    dist.barrier()


def test_a_rank_that_does_not_open_the_parts_is_named(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    error = run_failing_ranks(open_alone, 2, tmp_path, tmp_path)[0]
    assert "rank 0 (part 0) could not exchange setting up parts" in error.text
    assert "\n  rank 1 gave no sign of life" in error.text


def fail_for_lack_of_memory(rank: int, folder: Path) -> None:
    parts = open_here(folder)
    if rank == 1:

        def send(*_: object, **__: object) -> None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        dist.all_to_all_single = send
    parts.line.run("a test", lambda wire: wire.gather_texts("x"))


def test_a_rank_without_memory_blames_nobody_else(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    one, other = run_failing_ranks(fail_for_lack_of_memory, 2, tmp_path, tmp_path)
    assert (one.kind, other.kind) == ("PeerError", "RuntimeError")
    assert "had an error: RuntimeError: DefaultCPUAllocator" in one.text


def make_in_other_order(rank: int, folder: Path) -> None:
    parts = open_here(folder)
    parts.labels() if rank else parts.features()


def test_tables_made_in_another_order_are_told(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(make_in_other_order, 2, tmp_path, tmp_path):
        assert found.kind == "RankDisagreementError"
        assert "rank 0 has table node.features" in found.text


def test_more_ranks_than_parts_are_refused(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    for found in run_failing_ranks(open_own, 3, tmp_path, [tmp_path] * 3):
        assert "2 parts cannot be owned by 3 ranks" in found.text


def test_a_process_group_that_is_missing_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RankSetupError, match="init_process_group"):
        sh.distributed.open(tmp_path)


INTERRUPTED = """
import signal, sys, torch, torch.distributed as dist
import shorthaul as sh

dist.init_process_group("gloo")
parts = sh.distributed.open(sys.argv[1], topology=sys.argv[2], shares_machine=False)
features = parts.features()
loader = sh.distributed.MiniBatchLoader(parts, None, (3, 2), 7, features=features, prefetch=0, look_ahead=0)
batches = iter(loader)
next(batches)
try:
    if dist.get_rank() == 0:  # waits for the other rank, which never comes
        print("ready", flush=True)
        next(batches)
    signal.pause()
except KeyboardInterrupt:
    print("rank", dist.get_rank(), "obeys", flush=True)
    raise
"""


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "split"])
def test_ctrl_c_ends_all_ranks(tmp_path: Path, topology: str) -> None:
    """One rank waits in an exchange, the other does something else; torchrun passes the signal on."""
    cut_homogeneous(tmp_path / "parts", 2)
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = subprocess.Popen(
        (*command, str(script), str(tmp_path / "parts"), topology),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    assert sorted(said.splitlines()) == ["rank 0 obeys", "rank 1 obeys"]


def wait_and_be_interrupted(rank: int, folder: Path) -> str:
    features = open_here(folder, timeout_seconds=50.0).features()
    said = "never"
    if rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            features[torch.arange(60)]  # the other rank does not come before this one has left
        except KeyboardInterrupt:
            said = "at once"
    dist.barrier()
    return said


def test_an_interrupt_is_obeyed_while_others_are_waited_for(tmp_path: Path) -> None:
    cut_homogeneous(tmp_path, 2)
    assert run_ranks(wait_and_be_interrupted, 2, tmp_path, tmp_path)[0] == "at once"
