"""Ranks as processes: forked from a server that has imported everything, so that a test takes little time."""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed", "shorthaul", "shorthaul.distributed"])
WAIT_SECONDS = 60.0


class Failed:
    """How a rank ended that raised: its error, as far as that can be pickled."""

    def __init__(self, error: BaseException) -> None:
        self.kind, self.text = type(error).__name__, str(error)
        self.trace = "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return self.trace


class Gone:
    """How a rank ended that said nothing."""

    def __init__(self, exit_code: int | None) -> None:
        self.exit_code = exit_code

    def __repr__(self) -> str:
        return f"Gone({self.exit_code})"


def _begin(
    function: Callable[..., Any], rank: int, ranks: int, store: str, results: Any, arguments: Any
) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    try:
        found: Any = function(rank, *arguments)
    except BaseException as error:
        found = Failed(error)
    results.put((rank, pickle.dumps(found)))


def free_address() -> str:
    """Where rank 0 holds the store, as on a cluster: a port that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"


def start_ranks(
    function: Callable[..., Any],
    ranks: int,
    folder: Path,
    *arguments: Any,
    store: str | None = None,
) -> tuple[list[Any], Any]:
    """Processes that run `function(rank, *arguments)`, and the queue of what they return.

    `store` is where they meet; None (default) for a file.
    """
    results = _CONTEXT.Queue()
    store = store or f"file://{folder}/store-{time.monotonic_ns()}"
    started = [
        _CONTEXT.Process(
            target=_begin, args=(function, rank, ranks, store, results, arguments), daemon=True
        )
        for rank in range(ranks)
    ]
    for each in started:
        each.start()
    return started, results


def end_ranks(started: list[Any], results: Any) -> list[Any]:
    """What each rank returned; `Failed` or `Gone` for those that did not."""
    found: dict[int, Any] = {}
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < len(started) and time.monotonic() < deadline:
        is_over = not any(each.is_alive() for each in started)
        try:
            rank, data = results.get(timeout=0.05)
            found[rank] = pickle.loads(data)
        except queue.Empty:
            if is_over:
                break
    for each in started:
        each.join(max(0.0, deadline - time.monotonic()))
    hanging = [each for each in started if each.is_alive()]
    for each in hanging:
        each.kill()
        each.join()
    assert not hanging, "ranks did not end"
    return [found.get(rank, Gone(each.exitcode)) for rank, each in enumerate(started)]


def run_ranks(function: Callable[..., Any], ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns in each of so many processes; none may fail."""
    found = end_ranks(*start_ranks(function, ranks, folder, *arguments))
    wrong = [each for each in found if isinstance(each, Failed | Gone)]
    assert not wrong, wrong[0]
    return found


def run_failing_ranks(
    function: Callable[..., Any], ranks: int, folder: Path, *arguments: Any
) -> list[Any]:
    """The same where ranks may fail."""
    return end_ranks(*start_ranks(function, ranks, folder, *arguments))
