"""Errors about activations outside memory: space, budgets, plans, wear."""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Mapping
from pathlib import Path

from shorthaul.errors.root import ShorthaulError
from shorthaul.units import format_bytes


class TemporaryFileSystemError(ShorthaulError, ValueError):
    """The scratch directory is memory, so that writing to it would save none."""

    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__(
            f"{directory} is a {kind}: what is written there stays in memory.\n"
            "  Give a directory on a disk, set SHORTHAUL_SCRATCH, or pass `allow_memory=True`."
        )


class ScratchDirectoryError(ShorthaulError, FileNotFoundError, NotADirectoryError):
    """The scratch directory does not exist, or is no directory."""

    def __init__(self, directory: Path) -> None:
        is_there = directory.exists()
        self.message = (
            f"the scratch directory {directory} {'is no directory' if is_there else 'does not exist'}.\n"
            "  Make it first (mkdir -p), or give another one on a disk with room for activations: "
            "`directory=`\n  or SHORTHAUL_SCRATCH. It is not made here: a path that is misspelled, or a "
            "disk that is not mounted,\n  would fill another disk."
        )
        code = errno_codes.ENOTDIR if is_there else errno_codes.ENOENT
        super().__init__(code, self.message, os.fspath(directory))

    def __str__(self) -> str:
        return self.message


class LocalRanksError(ShorthaulError, ValueError):
    """A budget is that of a machine, and nobody says how many processes share it."""

    def __init__(self, budget: str, told: str | None) -> None:
        found = "is not set" if told is None else f"is {told!r}"
        super().__init__(
            f"budget={budget!r} is shared by the ranks of a machine, but how many they are is not known: "
            f"LOCAL_WORLD_SIZE {found}.\n"
            "  torchrun sets it; with another launcher set it to the number of processes on each machine, or "
            "give each process its own budget."
        )


class SpoolFullError(ShorthaulError, OSError):
    """The scratch directory has no room for the activations of a step."""

    def __init__(
        self,
        directory: Path,
        needed_bytes: int,
        *,
        used_bytes: int,
        free_bytes: int,
        reserve_bytes: int,
        refusal: str | None = None,
    ) -> None:
        if refusal is not None:
            there_is = f"does not give them: {refusal}"
        else:
            there_is = (
                f"has {format_bytes(free_bytes)} ({free_bytes:,} bytes) free, of which "
                f"{format_bytes(reserve_bytes)} are left for others"
            )
        self.message = (
            f"activations need {format_bytes(needed_bytes)} ({needed_bytes:,} bytes) in one piece "
            f"besides the {format_bytes(used_bytes)} that they use, but {directory} {there_is}.\n"
            "  Lower the batch size, raise `minimum_bytes`, or give another directory.\n"
            "  `sh.offload.plan(model, batch)` shows what a step writes before training."
        )
        super().__init__(errno_codes.ENOSPC, self.message, os.fspath(directory))

    def __str__(self) -> str:
        return self.message


class OffloadBudgetError(ShorthaulError, MemoryError):
    """Activations that are needed at the same time are larger than the budget.

    Or the disk takes no more of them, so that the budget would have to hold all that are left.
    """

    def __init__(
        self, needed_bytes: int, budget_bytes: int, detail: str, refusal: str | None = None
    ) -> None:
        budget = f"{format_bytes(budget_bytes)} ({budget_bytes:,} bytes)"
        needed = f"{format_bytes(needed_bytes)} ({needed_bytes:,} bytes)"
        if refusal is None:
            message = (
                f"the budget of {budget} is too small: {needed} are needed at once {detail}.\n"
                f"  Raise `budget` to {needed_bytes:,} or more, or lower the batch size."
            )
        else:
            message = (
                f"the budget of {budget} is used up, and the disk takes no more: {refusal}.\n"
                f"  {needed} are needed now {detail}.\n"
                "  Make room on the disk, give another directory, or raise the daily limit; a larger\n"
                "  `budget` helps only if it holds what the disk does not take."
            )
        super().__init__(message)
        self.needed_bytes, self.budget_bytes, self.refusal = needed_bytes, budget_bytes, refusal


class ProcessMemoryError(ShorthaulError, MemoryError):
    """The memory that a process may have does not hold what training needs in it."""

    def __init__(self, memory_bytes: int, least_bytes: int, parts: Mapping[str, int]) -> None:
        listed = ", ".join(f"{what} {format_bytes(size)}" for what, size in parts.items())
        super().__init__(
            f"a memory of {format_bytes(memory_bytes)} ({memory_bytes:,} bytes) for the process is too "
            f"small: at least {format_bytes(least_bytes)} ({least_bytes:,} bytes) are needed.\n"
            f"  {listed}; a tenth of it is for temporaries.\n"
            f"  Raise `memory` to {least_bytes:,} or more, or lower the batch size."
        )
        self.memory_bytes, self.least_bytes = memory_bytes, least_bytes


class ActivationLostError(ShorthaulError, RuntimeError):
    """An activation could not be brought back as it was; the step can be run again."""

    def __init__(self, tensor: str, scope: str, file: str, offset_bytes: int, reason: str) -> None:
        super().__init__(
            f"the activation {tensor} of {scope} is lost: {reason}.\n"
            f"  file {file}, from byte {offset_bytes:,}\n"
            "  No gradient was made from it. Parameters are unchanged until the optimizer steps, so\n"
            "  `sh.offload.retry_step(step)` can run the step again."
        )


class BlockChangedError(ShorthaulError, RuntimeError):
    """A block that is computed again has other parameters than in the forward pass."""

    def __init__(self, block: str) -> None:
        super().__init__(
            f"the block {block} cannot be computed again: its parameters or buffers are not what they "
            "were in the forward pass.\n"
            "  No gradient was made from it. Change them after the backward pass, or have nothing "
            "computed again:\n"
            "  `shorthaul run --no-recompute`, `ShorthaulCallback(recompute=False)`."
        )


class InPlaceChangeError(ShorthaulError, RuntimeError):
    """A saved tensor was changed in place before the backward pass needed it."""

    def __init__(self, tensor: str, version: int, expected: int) -> None:
        super().__init__(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor}] is at version {version}; expected version {expected} instead."
        )


class PlanError(ShorthaulError, ValueError):
    """A plan for a step's activations was asked for with units, decisions or limits that clash."""


class EnduranceError(ShorthaulError, ValueError):
    """A drive's rating or write limit was given in a form that says nothing usable."""


class CodecError(ShorthaulError, ValueError):
    """Packed bytes are damaged or do not belong to the tensor, or a codec cannot take a tensor."""


class NoFitError(ShorthaulError, MemoryError):
    """Of all ways to run a training step that were looked at, none stays within the memory."""

    def __init__(
        self, memory_bytes: int, least_bytes: int, how: str, parts: Mapping[str, int]
    ) -> None:
        listed = ", ".join(f"{what} {format_bytes(size)}" for what, size in parts.items())
        super().__init__(
            f"no plan fits {format_bytes(memory_bytes)} ({memory_bytes:,} bytes) of memory: the least "
            f"that was found is {format_bytes(least_bytes)} ({least_bytes:,} bytes), {how}.\n"
            f"  It holds: {listed}.\n"
            f"  Raise `memory` to {least_bytes:,} or more, lower the batch size, or take an optimizer\n"
            "  with smaller states."
        )
        self.memory_bytes, self.least_bytes = memory_bytes, least_bytes


class MachineMemoryError(ShorthaulError, MemoryError):
    """A step has to be run once to be planned, and this machine has no memory for it."""

    def __init__(self, machine_bytes: int, needed_bytes: int, how: str) -> None:
        super().__init__(
            f"a step has to be run once, with everything kept, before it can be planned: {how} it needs "
            f"{format_bytes(needed_bytes)} ({needed_bytes:,} bytes), and this process can use "
            f"{format_bytes(machine_bytes)} ({machine_bytes:,} bytes) here.\n"
            "  Lower the batch size, allow smaller `micro_batches`, or plan it on a larger machine;\n"
            "  `sh.fit(model, batch, memory=..., dry=True)` runs nothing."
        )
        self.machine_bytes, self.needed_bytes = machine_bytes, needed_bytes
