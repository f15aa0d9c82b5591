"""Kernels that are asked for: waited for, or had as soon as they are there.

Whoever can do without a kernel for a while asks by `load_when_ready`: until the kernel is compiled it gets a
`KernelPendingError`, and does the work in another way. `SHORTHAUL_COMPILE=wait` has everybody wait.

>>> with compiling("wait"):
...     is_waited_for()
True
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from shorthaul.errors import KernelPendingError
from shorthaul.fallbacks import note_fallback
from shorthaul.jit.compiling.pool import Job, compilers
from shorthaul.jit.compiling.progress import announce_compiling, progress_on_terminal
from shorthaul.jit.kernel import Kernel, find_kernel, find_loaded, kernel_key, load_kernel
from shorthaul.jit.kernel_cache import KernelCache
from shorthaul.jit.source import CppSource
from shorthaul.jit.toolchain import Toolchain, find_toolchain
from shorthaul.settings import settings

Made = TypeVar("Made")
Loader = TypeVar("Loader", bound=Callable[..., Any])

# So many kernels that wait at once are worth a compile of the headers that they share: it takes as long as
# one of them, and spares each a quarter.
MANY_KERNELS = 8

_mode: contextvars.ContextVar[str | None] = contextvars.ContextVar("shorthaul_compiling")
# Where the jobs go that somebody is about to wait for.
_asked: contextvars.ContextVar[list[Job] | None] = contextvars.ContextVar("shorthaul_asked")
# Kernels that did not compile in the background: they are not tried again by this process.
_failed: dict[object, BaseException] = {}
# What waits for a kernel: when that was last tried, the kernel's name, and whether it failed. To try again before
# another kernel has come would be in vain, and takes longer than a small convolution.
_pending: dict[Hashable, tuple[object, str, bool]] = {}
_MOST_PENDING = 4096


@contextlib.contextmanager
def compiling(mode: str) -> Iterator[None]:
    """Wait for compilers inside, or do not, whatever the setting says.

    Args:
        mode: `"wait"`; `"background"`; or `"gather"`, which does not wait yet and is about to.
    """
    before = _mode.get(None)
    try:
        try:
            _mode.set(mode)
            yield
        finally:
            _mode.set(before)
    finally:
        _mode.set(before)  # once more: an interrupt may have come before the first could


def is_waited_for(*, by_default: bool = False) -> bool:
    """Whether who asks for a kernel now waits for its compiler.

    Under `torch.use_deterministic_algorithms(True)` everybody does: when a kernel takes over, last bits change,
    and that must not depend on how long a compiler takes.

    Args:
        by_default: Whether this caller wants to where nothing else is said (default False).
    """
    mode = _mode.get(None)
    if mode is not None:
        return mode == "wait"
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    return by_default or is_deterministic or settings.compiling == "wait"


def unless_pending(key: Hashable, make: Callable[[], Made]) -> Made:
    """What `make` makes of kernels, or `KernelPendingError`; that at once as long as no kernel has come since it last was.

    Who waits, or is about to, has it tried each time.

    Args:
        key: What is made.
        make: Makes it, by `load_when_ready`.
    """
    known = _pending.get(key)
    epoch = compilers.epoch
    if (
        known is not None
        and known[0] is epoch
        and not is_waited_for()
        and _mode.get(None) != "gather"
    ):
        raise KernelPendingError(known[1], has_failed=known[2])
    try:
        made = make()
    except KernelPendingError as error:
        if len(_pending) >= _MOST_PENDING:
            _pending.clear()
        _pending[key] = epoch, error.kernel, error.has_failed
        raise
    _pending.pop(key, None)
    return made


def kept_when_ready(load: Loader) -> Loader:
    """Have a function that loads a kernel keep what it returns, and what it raises as long as no kernel has come.

    >>> @kept_when_ready
    ... def kernel_of(number):
    ...     print("emitted")
    ...     return number
    >>> kernel_of(3), kernel_of(3)
    emitted
    (3, 3)

    Args:
        load: A function of arguments that can be hashed.
    """

    @functools.cache
    @functools.wraps(load)
    def find(*arguments: Any) -> Any:
        return unless_pending((load, arguments), lambda: load(*arguments))

    found: Any = find
    return found  # type: ignore[no-any-return]


def forget_pending() -> None:
    """Try everything anew that waits for a kernel, as with another compiler or cache."""
    _pending.clear()


def load_when_ready(source: CppSource, instead: str) -> Kernel:
    """The kernel, or `KernelPendingError` while it is compiled in the background.

    One that does not compile is noted as a fallback, once, and stays pending.

    Args:
        source: The kernel's text, functions and flags.
        instead: What does its work meanwhile; for the note.
    """
    toolchain = find_toolchain()
    key = kernel_key(source, toolchain)
    kernel = find_loaded(key)
    if kernel is not None:
        return kernel
    if is_waited_for():
        has_failed = _failed.pop(key, None) is not None
        kernel = load_kernel(source)
        if has_failed:
            compilers.tell_news()
        return kernel
    if key in _failed:
        raise KernelPendingError(source.name, has_failed=True)
    cache = KernelCache(is_over=lambda: compilers.is_closed)
    if cache.has(source.digest(toolchain.fingerprint)):
        return find_kernel(source, toolchain, cache)
    work = functools.partial(_compile_noting, source, toolchain, cache, instead)
    is_urgent = _mode.get(None) == "gather"
    job = compilers.submit((key, cache.directory), source.name, work, is_urgent=is_urgent)
    asked = _asked.get(None)
    if asked is not None:
        asked.append(job)
    if len(compilers.under_way()) == MANY_KERNELS:
        work = functools.partial(cache.precompile_headers, toolchain)
        compilers.submit((toolchain, cache.directory), "headers", work, is_urgent=True)
    raise KernelPendingError(source.name)


def gather_pending(plans: Iterable[Callable[[], object]], *, is_urgent: bool = False) -> bool:
    """Ask for every kernel of some plans at once; whether one of them is still pending.

    Args:
        plans: Functions that load kernels, and do nothing else.
        is_urgent: Whether somebody is going to wait for them (default False).
    """
    is_urgent = is_urgent or _mode.get(None) == "gather"  # somebody is going to wait already
    return _gather(plans, "gather" if is_urgent else "background")[0]


def _gather(plans: Iterable[Callable[[], object]], mode: str) -> tuple[bool, list[Job]]:
    """Whether a kernel is pending, and the jobs that were asked for."""
    is_pending, jobs = False, list[Job]()
    token = _asked.set(jobs)
    try:
        with compiling(mode):
            for plan in plans:
                try:
                    plan()
                except KernelPendingError:
                    is_pending = True
    finally:
        _asked.reset(token)
    return is_pending, jobs


def load_plans(plans: Sequence[Callable[[], object]]) -> None:
    """Have every kernel of some plans, compiling the missing ones several at a time.

    Args:
        plans: Functions that load kernels, and do nothing else.
    """
    jobs = list(dict.fromkeys(_gather(plans, "gather")[1]))
    if jobs:
        announce_compiling(len(jobs))
        with progress_on_terminal() as show:
            for done, job in enumerate(jobs):
                show("compiling", done, len(jobs))
                job.wait()
    with compiling("wait"):  # what did not compile is an error here
        for plan in plans:
            plan()


def load_kernels(sources: Sequence[CppSource]) -> list[Kernel]:
    """The kernels of all sources, compiling the missing ones several at a time.

    Args:
        sources: In the order of the result.
    """
    if len(sources) > 1:
        load_plans([functools.partial(load_when_ready, each, "nothing") for each in sources])
    return [load_kernel(each) for each in sources]


def run_compiled(
    step: Callable[[], object], on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Run a step when every kernel that it loads is there.

    It runs twice: the first time in another way where kernels are missing, which are thereby asked for and
    compiled several at a time.

    Args:
        step: The step.
        on_progress: As of `wait_for_compilers`; None by default.
    """
    with compiling("gather"):
        step()
    wait_for_compilers(on_progress)
    with compiling("wait"):
        step()


def wait_for_compilers(on_progress: Callable[[int, int], None] | None = None) -> None:
    """Return when no compiler is at work in the background.

    Args:
        on_progress: Called with how many kernels have ended, and of how many; None by default.
    """
    waited: dict[Job, None] = dict.fromkeys(compilers.under_way())
    if waited:
        announce_compiling(len(waited))
    while True:
        waited |= dict.fromkeys(compilers.under_way())
        left = [each for each in waited if not each.is_done]
        if on_progress is not None:
            on_progress(len(waited) - len(left), len(waited))
        if not left:
            return
        left[0].wait()


def _compile_noting(
    source: CppSource, toolchain: Toolchain, cache: KernelCache, instead: str
) -> None:
    try:
        find_kernel(source, toolchain, cache)
    except BaseException as error:
        if not compilers.is_closed:
            _failed[kernel_key(source, toolchain)] = error
            reason = " ".join(str(error).split()).rstrip(".")
            note_fallback(f"kernel {source.name}", instead, reason)
        raise
