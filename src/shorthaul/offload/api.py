"""`sh.offload_activations`: from a user's knobs to a context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shorthaul.allocator.freed_memory import freed_memory
from shorthaul.errors import CudaUnavailableError, ScratchDirectoryError
from shorthaul.fallbacks import note_fallback
from shorthaul.offload.codecs.compression import choose_codec
from shorthaul.offload.context import ActivationOffload
from shorthaul.offload.device.copies import DeviceCopier
from shorthaul.offload.device.pinned_pool import PinnedBufferPool
from shorthaul.offload.drive.drives import Drives
from shorthaul.offload.drive.endurance import Endurance
from shorthaul.offload.drive.spool import SpoolSet
from shorthaul.offload.local_ranks import count_local_ranks, split_budget
from shorthaul.offload.policy.policy import (
    OffloadAll,
    OffloadChosen,
    OffloadPlanned,
    OffloadPrefix,
    Policy,
    SavedTensor,
)
from shorthaul.offload.store.store import ActivationStore
from shorthaul.settings import settings
from shorthaul.storage import BufferPool, StorageEngine, open_engine
from shorthaul.units import parse_bytes

DEFAULT_MINIMUM_BYTES = 2**20
# Writes need room for what a layer saves at once; reads only have to run ahead of the use, and at
# 2 GB/s this is 30 ms of it.
DEFAULT_IN_FLIGHT_BYTES = 128 * 2**20
DEFAULT_PREFETCH_BYTES = 64 * 2**20

Directories = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def offload_activations(
    directory: Directories | None = None,
    *,
    budget: int | str | None = None,
    policy: str | Callable[[SavedTensor], bool] = "auto",
    minimum_bytes: int | str = DEFAULT_MINIMUM_BYTES,
    in_flight: int | str | None = None,
    prefetch: int | str | None = None,
    compress: str | None = None,
    memory: int | str = 0,
    checksum: bool = True,
    on_full: str = "keep",
    endurance: Mapping[str, Any] | Endurance | None = None,
    spread: str = "turns",
    allow_memory: bool = False,
    engine: str | Callable[[], StorageEngine] | None = None,
) -> ActivationOffload:
    """Move what autograd saves to disk during forward, and back in time for backward.

    >>> import torch, shorthaul as sh
    >>> layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    >>> with sh.offload_activations(minimum_bytes="64KiB") as offload:
    ...     layers(torch.randn(256, 512)).square().mean().backward()
    >>> offload.report().counts.offloaded
    5

    Gradients are bit-equal to those without it, unless a lossy codec is asked for by name. Bytes are
    numbers, or words such as `"4GiB"`.

    From the first call on, large CPU tensors of this process are made in a pool, so that memory which is
    freed serves the next tensors, and no more stays resident than was live at once. The setting
    `freed_memory` leaves the allocator alone, and so do variables of your own that tune it.

    Args:
        directory: A directory on a disk, or several; None (default) takes the scratch setting.
        budget: Bound of the activation bytes in memory; None (default) for none. Of `"16GiB/machine"` each of
            the ranks that torchrun starts on a machine has an equal share.
        policy: `"auto"` (default) offloads everything without a budget, and plans with one;
            `"all"`; `"ssdtrain"`, the published rule; or a function of a `SavedTensor`.
        minimum_bytes: Smaller tensors stay in memory (default 1 MiB).
        in_flight: Bound of the bytes that are being written; None (default) for 128 MiB.
        prefetch: Bound of the bytes that are read ahead; None (default) for 64 MiB.
        compress: A codec: `"mask"`, `"lz4"` and `"zstd"` are exact, `"int8"` and `"fp8"` are not;
            `"auto"` packs exactly, and only where it pays. None (default) packs nothing.
        memory: How many bytes of packed tensors may stay in memory before the disk is used (default
            0).
        checksum: Verify what comes back (default True).
        on_full: What a full disk means: `"keep"` in memory (default), or `"raise"`.
        endurance: Rating of the drive and limit of its wear, such as `{"tbw": "600TB", "daily":
            "2TB"}`; None (default) for no limit.
        spread: Use several directories in `"turns"` (default) or in `"stripes"`.
        allow_memory: Permit a directory that is itself memory (default False).
        engine: Name of a storage engine, or a function that opens one; None (default) takes the
            setting.
    """
    if on_full not in ("keep", "raise"):
        raise ValueError(f"on_full must be 'keep' or 'raise', got {on_full!r}")
    if not callable(policy) and policy not in ("auto", "all", "ssdtrain"):
        raise ValueError(f"policy must be 'auto', 'all', 'ssdtrain' or a callable, got {policy!r}")
    given = _list_directories(directory)
    budget_bytes = split_budget(budget)
    in_flight_bytes = parse_bytes(DEFAULT_IN_FLIGHT_BYTES if in_flight is None else in_flight)
    prefetch_bytes = parse_bytes(DEFAULT_PREFETCH_BYTES if prefetch is None else prefetch)
    pool_bytes = budget_bytes
    if budget_bytes is not None:
        # Half of it: a feed-forward layer saves two large tensors in a row, and with a quarter the
        # second waited for the first. Reads come one after another, with a layer's work in between.
        in_flight_bytes = min(in_flight_bytes, budget_bytes // 2)
        prefetch_bytes = min(prefetch_bytes, budget_bytes // 4)
    if pool_bytes is None:
        pool_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    is_automatic = compress == "auto"
    codec = None if compress is None or is_automatic else choose_codec(compress)
    minimum_bytes, packed_limit_bytes = parse_bytes(minimum_bytes), parse_bytes(memory)
    wear = Drives(Endurance.parse(endurance), given, count_local_ranks())
    freed_memory.settle()

    # What is opened until something is refused is closed again: the store closes it from then on.
    with contextlib.ExitStack() as opened:

        def open_lane() -> StorageEngine:
            return opened.enter_context(engine() if callable(engine) else open_engine(engine))

        spools = SpoolSet([Path(each) for each in given], spread=spread, allow_memory=allow_memory)
        opened.callback(spools.close)
        store = ActivationStore(
            open_lane(),
            open_lane(),
            opened.enter_context(open_pool(pool_bytes)),
            spools,
            budget_bytes=budget_bytes,
            in_flight_bytes=in_flight_bytes,
            prefetch_bytes=prefetch_bytes,
            has_checksums=checksum,
            raises_when_full=on_full == "raise",
            codec=codec,
            packed_limit_bytes=packed_limit_bytes,
            wear=wear,
            copier=DeviceCopier() if torch.cuda.is_available() else None,
        )
        opened.pop_all()
        return ActivationOffload(
            store,
            minimum_bytes=minimum_bytes,
            wear=wear,
            choose_policy=lambda offload: _choose_policy(policy, offload),
            is_packing_automatic=is_automatic,
        )


def _list_directories(directory: Directories | None) -> list[str | os.PathLike[str]]:
    if directory is None:
        directory = settings.scratch_directory
    given = [directory] if isinstance(directory, str | os.PathLike) else list(directory)
    if not given:
        raise ValueError(
            "directory must be a directory or several, got an empty list; leave it out for the "
            "scratch setting"
        )
    for each in given:
        if not Path(each).is_dir():
            raise ScratchDirectoryError(Path(each))
    return given


def open_pool(budget_bytes: int) -> BufferPool:
    """Buffers for activations: pinned, where there is a GPU to copy from."""
    why = "activation buffers"
    if torch.cuda.is_available():
        try:
            return PinnedBufferPool(budget_bytes, why=why)
        except CudaUnavailableError as error:  # a GPU, but not one of CUDA
            note_fallback("pinned buffers", "pageable memory, copied more slowly", error.reason)
    return BufferPool(budget_bytes, why=why)


def _choose_policy(
    policy: str | Callable[[SavedTensor], bool], offload: ActivationOffload
) -> Policy:
    store = offload.store
    if callable(policy):
        return OffloadChosen(policy)
    if policy == "ssdtrain":
        return OffloadPrefix()
    if policy == "all" or store.budget_bytes is None:
        return OffloadAll()
    return OffloadPlanned(
        budget_bytes=store.budget_bytes,
        in_flight_bytes=store.in_flight_bytes,
        prefetch_bytes=store.prefetch_bytes,
        measure_disk=offload.measure_disk,
        limit_writes=offload.wear.limits_per_step,
    )
