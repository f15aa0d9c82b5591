"""Two processes: replicated and sharded models have the gradients they have without offloading."""

from __future__ import annotations

import time

import torch.multiprocessing

from tests.offload.matrix.two_processes import PROCESSES, run

LONGEST_SECONDS = 90


def test_gradients_in_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SHORTHAUL_STATE_DIRECTORY", str(tmp_path / "state"))
    context = torch.multiprocessing.spawn(
        run,
        (str(tmp_path / "rendezvous"), str(tmp_path)),
        nprocs=PROCESSES,
        join=False,
    )
    give_up_at = time.monotonic() + LONGEST_SECONDS
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < give_up_at, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
