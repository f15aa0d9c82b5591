"""What a process may be like when an operation is called: each runs some work in such surroundings."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.matrix.operation import Run, Tensors

Surrounding = Callable[[Run, Path], Tensors]
LONGEST_CHILD_SECONDS = 60.0


class ChildFailed(Exception):  # noqa: N818
    """What went wrong in a forked child, or how it ended."""


def _within(context: Callable[[], Any]) -> Surrounding:
    def run(work: Run, _: Path) -> Tensors:
        with context():
            return work()

    return run


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


class _Seeing(TorchDispatchMode):
    """Sees every operator, and changes none."""

    def __torch_dispatch__(
        self, function: Any, _: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        return function(*arguments, **(named or {}))


def _saving() -> Any:
    """Copies of what is saved for backward passes, as those make who keep it elsewhere."""
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    # New memory is filled with not-a-number then: what nobody wrote is seen.
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _anomaly() -> Iterator[None]:
    torch.autograd.set_detect_anomaly(True)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(False)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_a_thread(work: Run, _: Path) -> Tensors:
    found: list[Tensors] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _compiled(work: Run, _: Path) -> Tensors:
    torch.compiler.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what dynamo says about itself
            return torch.compile(work, backend="eager")()
    finally:
        torch.compiler.reset()


def after_fork(work: Run, folder: Path) -> Tensors:
    """In a forked child, which has none of the threads that its parent's pool has: to use them hangs."""
    answer = folder / "answer"
    with _threads(2), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, which users do
        torch.ones(1 << 17, device="cpu").sort()  # by both threads
        child = os.fork()
        if child == 0:
            _answer(work, answer)
    stop = time.monotonic() + LONGEST_CHILD_SECONDS
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < stop:
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise ChildFailed("it hangs")
    if status:
        raise ChildFailed(answer.read_text() if answer.exists() else f"status {status}")
    return torch.load(io.BytesIO(answer.read_bytes()), weights_only=True)  # type: ignore[no-any-return]


def _answer(work: Run, answer: Path) -> NoReturn:
    status = 1
    try:
        found = {name: torch.as_tensor(each).clone() for name, each in work().items()}
        torch.save(found, answer)
        status = 0
    except BaseException:
        answer.write_text(traceback.format_exc())
    finally:
        os._exit(status)


SURROUNDINGS: dict[str, Surrounding] = {
    "default dtype float64": _within(lambda: _default_dtype(torch.float64)),
    "default dtype bfloat16": _within(lambda: _default_dtype(torch.bfloat16)),
    "default dtype float16": _within(lambda: _default_dtype(torch.float16)),
    "default device cpu": _within(lambda: _default_device("cpu")),
    "default device meta": _within(lambda: _default_device("meta")),
    "inference mode": _within(torch.inference_mode),
    "no grad": _within(torch.no_grad),
    "deterministic": _within(_deterministic),
    "anomaly mode": _within(_anomaly),
    "dispatch mode": _within(_Seeing),
    "saved-tensor hooks": _within(_saving),
    "one thread": _within(lambda: _threads(1)),
    "three threads": _within(lambda: _threads(3)),
    "a thread": _in_a_thread,
    "after a fork": after_fork,
    "compiled": _compiled,
}
WITHOUT_GRADIENTS = ("inference mode", "no grad")
# Traced, or so much like another that `make test` has that one alone.
SLOW = ("compiled", "default dtype float16", "default device cpu", "one thread")
