"""Every error that shorthaul raises on purpose.

All inherit `ShorthaulError`, so one `except` catches them, and the builtin that a caller would
expect (`OSError`, `ValueError`, ...), so code written without shorthaul in mind works too. A class
takes the facts and builds the sentence: what was expected, what came, where, and what to do.
"""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shorthaul.units import format_bytes


class ShorthaulError(Exception):
    """Root of every error below; raised itself by nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would unpickle by calling the class with the finished sentence; ours take facts.
        # Errors travel between processes when a worker of a data loader fails.
        return _restore_error, (type(self), super().__reduce__()[1], dict(vars(self)))


def _restore_error(
    kind: type[ShorthaulError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> ShorthaulError:
    # MemoryError refuses to make its subclasses by `__new__`; the two roots below make any.
    error: ShorthaulError = (OSError if issubclass(kind, OSError) else Exception).__new__(kind)
    builtin: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    builtin.__init__(error, *arguments)
    vars(error).update(attributes)
    return error


class SettingError(ShorthaulError, ValueError):
    """A setting or its environment variable has a value that cannot be used."""

    def __init__(self, environment: str, text: str, expected: str) -> None:
        super().__init__(f"{environment} is {text!r}, but {expected}.")


class UnknownSettingError(ShorthaulError, AttributeError):
    """A setting was named that does not exist."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no setting `{name}`; there are {', '.join(known)}.")


class MissingExtraError(ShorthaulError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed.\n"
            f"  pip install 'shorthaul[{extra}]'"
        )


class MissingPackageError(ShorthaulError, ImportError):
    """A package that shorthaul does not install itself is needed for what was asked."""

    def __init__(self, package: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed or does not load.\n"
            "  Its own pages say which of its builds fits your PyTorch."
        )


class ExplainError(ShorthaulError, TypeError):
    """`sh.explain` was given something that shorthaul did not make."""

    def __init__(self, subject: object) -> None:
        super().__init__(
            f"cannot explain {subject!r}: expected something that shorthaul made, such as a kernel."
        )


class NoCompilerError(ShorthaulError, RuntimeError):
    """A generated kernel was asked for by name and there is no C++ compiler."""

    def __init__(self, looked_for: Sequence[str]) -> None:
        super().__init__(
            f"no C++ compiler was found (looked for: {', '.join(looked_for)}).\n"
            "  Install g++ or clang++ (Debian: apt-get install g++), set CXX, or\n"
            "  pip install 'shorthaul[compiler]'; `shorthaul doctor` shows what is found."
        )


class CompileError(ShorthaulError, RuntimeError):
    """The compiler rejected a generated source: a defect of shorthaul or of the tool chain."""

    def __init__(
        self, compiler: str, kernel: str, source: Path, command: Path, first_error: str
    ) -> None:
        super().__init__(
            f"{compiler} failed on {kernel}.\n"
            f"  source   {source}\n  command  {command}\n  first error: {first_error}"
        )
        self.source, self.command, self.first_error = source, command, first_error


class KernelLoadError(ShorthaulError, OSError):
    """A compiled kernel lies in the cache, but the system does not load it."""

    def __init__(self, library: Path, reason: str) -> None:
        super().__init__(
            f"{library} cannot be loaded: {reason}.\n"
            "  Where the file system is mounted `noexec`, point SHORTHAUL_CACHE at another one."
        )
        self.library = library

    def __str__(self) -> str:
        return str(self.args[0])


class CacheOwnershipError(ShorthaulError, PermissionError):
    """The kernel cache belongs to somebody else or can be written by others: it holds code."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"the kernel cache {directory} is refused: {reason}.\n"
            "  It holds code that would be loaded into this process. Make it yours alone\n"
            f"  (chmod 700 {directory}) or point SHORTHAUL_CACHE at another directory."
        )
        self.directory = directory

    def __str__(self) -> str:
        return str(self.args[0])


class KernelArgumentError(ShorthaulError, TypeError, ValueError):
    """A kernel was called with a tensor or number that its contract does not allow."""

    def __init__(self, kernel: str, argument: str, expected: str, got: str) -> None:
        super().__init__(f"{kernel}: argument `{argument}` must be {expected}, got {got}.")


class KernelStatusError(ShorthaulError, RuntimeError):
    """A kernel ran and reported failure through its return value."""

    def __init__(self, kernel: str, status: int) -> None:
        super().__init__(f"{kernel} returned status {status}; expected 0.")
        self.status = status


class TuningError(ShorthaulError, ValueError):
    """Autotuning was asked to choose among candidates that cannot be compared."""


class ConvolutionError(ShorthaulError, RuntimeError, ValueError):
    """A convolution was asked for with arguments or shapes that do not fit together."""


class StorageError(ShorthaulError, OSError):
    """A read or write failed; names the file, the range and the errno."""

    def __init__(
        self,
        action: str,
        path: str | os.PathLike[str],
        offset_bytes: int,
        length_bytes: int,
        code: int,
        detail: str = "",
    ) -> None:
        name = errno_codes.errorcode.get(code, str(code))
        reason = os.strerror(code) if code else "no errno"
        self.message = (
            f"{action} of {os.fspath(path)} failed at bytes "
            f"{offset_bytes:,} to {offset_bytes + length_bytes:,}: {name} ({reason})."
            + (f"\n  {detail}" if detail else "")
        )
        super().__init__(code, self.message, os.fspath(path))
        self.action, self.offset_bytes, self.length_bytes = action, offset_bytes, length_bytes

    def __str__(self) -> str:
        return self.message


class ShortReadError(StorageError, EOFError):
    """A file ended before the range that was asked for: truncated, or never that long."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        offset_bytes: int,
        length_bytes: int,
        got_bytes: int,
        detail: str = "",
    ) -> None:
        super().__init__(
            "read",
            path,
            offset_bytes,
            length_bytes,
            errno_codes.ENODATA,
            f"The file ends early: {got_bytes:,} of {length_bytes:,} bytes were there."
            + (f"\n  {detail}" if detail else ""),
        )
        self.got_bytes = got_bytes


class UnsafeFileError(ShorthaulError, PermissionError):
    """A path is a symbolic link, not a regular file, or otherwise not safe to open."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(path)} is not opened: {reason}.")

    def __str__(self) -> str:
        return str(self.args[0])


class EngineClosedError(ShorthaulError, RuntimeError):
    """A request was made of, or was waiting in, a storage engine that has been closed."""


class EngineUnavailableError(ShorthaulError, RuntimeError):
    """A storage engine was asked for by name and cannot work on this machine."""

    def __init__(self, engine: str, reason: str) -> None:
        super().__init__(
            f"the {engine} engine cannot be used here: {reason}.\n"
            "  Set SHORTHAUL_ENGINE=auto to take the best engine that works."
        )
        self.engine, self.reason = engine, reason


class ForkedTicketError(ShorthaulError, RuntimeError):
    """A ticket was waited for in a forked child: its request stayed with the parent."""


class CancelledError(ShorthaulError, RuntimeError):
    """A ticket was waited for after its request had been cancelled."""


class WaitTimeoutError(ShorthaulError, TimeoutError):
    """A wait with a time limit ended before its request did."""

    def __init__(self, waited_for: str, seconds: float) -> None:
        super().__init__(f"{waited_for} was not done after {seconds:g} s.")

    def __str__(self) -> str:
        return str(self.args[0])


class BufferBudgetError(ShorthaulError, MemoryError):
    """A single buffer larger than the whole budget was asked of a buffer pool."""

    def __init__(self, wanted_bytes: int, budget_bytes: int) -> None:
        super().__init__(
            f"a buffer of {format_bytes(wanted_bytes)} ({wanted_bytes:,} bytes) can never fit "
            f"the pool's budget of {format_bytes(budget_bytes)} ({budget_bytes:,} bytes)."
        )


class DatasetError(ShorthaulError, ValueError):
    """An embedded data set was asked for in a way, or on a Python, that it cannot serve."""


class TemporaryFileSystemError(ShorthaulError, ValueError):
    """The scratch directory is memory, so that writing to it would save none."""

    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__(
            f"{directory} is a {kind}: what is written there stays in memory.\n"
            "  Give a directory on a disk, set SHORTHAUL_SCRATCH, or pass `allow_memory=True`."
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


class RowIndexError(ShorthaulError, IndexError):
    """A row was asked for by a number that the table does not have."""

    def __init__(self, index: int, position: int, rows: int) -> None:
        if rows:
            there_are = f"the table has {rows:,} rows, so ids go from {-rows} to {rows - 1}"
        else:
            there_are = "the table has no rows"
        super().__init__(f"row id {index} at position {position} is out of range: {there_are}.")
        self.index, self.position, self.rows = index, position, rows


class RowArgumentError(ShorthaulError, TypeError, ValueError):
    """A table of rows was made or asked with arguments that do not fit."""

    def __init__(self, argument: str, expected: str, got: str) -> None:
        super().__init__(f"{argument} must be {expected}, got {got}.")


class RowReadError(StorageError):
    """Rows could not be read from their file; names the file and the rows."""

    def __init__(
        self, path: str | os.PathLike[str], rows: Sequence[int], cause: StorageError
    ) -> None:
        shown = ", ".join(f"{row:,}" for row in rows[:5])
        others = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        short = (
            f"the file ends early: {cause.got_bytes:,} of {cause.length_bytes:,} bytes were there; "
            if isinstance(cause, ShortReadError)
            else ""
        )
        super().__init__(
            "read",
            path,
            cause.offset_bytes,
            cause.length_bytes,
            cause.errno or 0,
            f"{short}rows {shown}{others} were not read, and no row of this request was handed out.",
        )
        self.rows = tuple(rows)


class ChangedFileError(ShorthaulError, OSError):
    """A table's file is not the one that was opened: it vanished, shrank or was replaced."""

    def __init__(self, path: str | os.PathLike[str], what_happened: str) -> None:
        self.message = (
            f"{os.fspath(path)} is not the file that the table was opened on: {what_happened}.\n"
            "  Rows read from it could be those of another table. Open it again with `sh.open`."
        )
        super().__init__(errno_codes.ESTALE, self.message, os.fspath(path))

    def __str__(self) -> str:
        return self.message


class ReadOnlyTableError(ShorthaulError, RuntimeError):
    """Rows were to be written to a table that is only read."""

    def __init__(self, what: str, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"{what}: the table lies in {os.fspath(path)}, which is opened for reading only.\n"
            "  Write to a copy in memory (`sh.unified(table.read(0, rows))`), or write a new file\n"
            "  with `sh.save_features`."
        )


class TableOpenError(ShorthaulError, OSError):
    """A table's file cannot be opened or written."""

    def __init__(self, path: str | os.PathLike[str], code: int, action: str = "opened") -> None:
        name = errno_codes.errorcode.get(code, str(code))
        self.message = (
            f"the table {os.fspath(path)} cannot be {action}: {name} ({os.strerror(code)})."
        )
        super().__init__(code, self.message, os.fspath(path))

    def __str__(self) -> str:
        return self.message


class MissingTableError(TableOpenError, FileNotFoundError):
    """A table was opened from a path where there is no file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, errno_codes.ENOENT)


class ClosedTableError(ShorthaulError, ValueError):
    """Rows were asked of a table on disk that has been closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"the table {os.fspath(path)} has been closed, and no row of it is read any more.\n"
            "  Open it again, sh.open(path), or call u.close() later."
        )


class TableFormatError(ShorthaulError, ValueError):
    """A file is not a table that can be read where it lies: format, order, dtype or length."""

    def __init__(self, path: str | os.PathLike[str], reason: str, remedy: str) -> None:
        super().__init__(f"{os.fspath(path)} cannot be used as a table: {reason}.\n  {remedy}")


class UnifiedSourceError(ShorthaulError, TypeError, ValueError):
    """`sh.unified` or `sh.save_features` was given something whose rows it cannot use."""

    def __init__(self, function: str, expected: str, got: str, remedy: str = "") -> None:
        super().__init__(
            f"{function} expected {expected}, got {got}." + (f"\n  {remedy}" if remedy else "")
        )


class DiskTensorError(ShorthaulError, NotImplementedError):
    """An operation that would need the whole table was asked of rows on disk, or quantized ones."""

    def __init__(
        self,
        operation: str,
        kind: str,
        verb: str,
        size_bytes: int,
        where: str,
        remedy: str = "",
    ) -> None:
        super().__init__(
            f"`{operation}` is not done on a {kind} tensor: it would {verb} all "
            f"{format_bytes(size_bytes)} of {where}.\n"
            + (
                f"  {remedy}"
                if remedy
                else "  Take the rows you need, u[ids] or u[a:b].cpu(), and compute with them; u.chunks()\n"
                "  goes through all rows piece by piece, and u.cpu() reads the whole table into memory."
            )
        )


class ReadOnlyTensorError(ShorthaulError, ValueError, RuntimeError):
    """A unified tensor was to be changed whose memory is read-only."""

    def __init__(self, operation: str, where: str) -> None:
        super().__init__(
            f"`{operation}` cannot change this table: it lies in {where}.\n"
            "  Copy it first: sh.unified(u.cpu().clone())."
        )


class PlacementError(ShorthaulError, RuntimeError):
    """A unified tensor met operands on devices that no rule puts together."""

    def __init__(self, operation: str, devices: Sequence[str]) -> None:
        super().__init__(
            f"`{operation}` got a unified tensor together with tensors on {' and '.join(devices)}.\n"
            "  A unified tensor goes where the others are, so the others must be in one place:\n"
            "  move one of them with `.to(device)`."
        )


class UnifiedDeviceError(ShorthaulError, RuntimeError):
    """The device name `unified` cannot be had: torch has one spare name, and another took it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f'`device="unified"` cannot be enabled: {reason}.\n'
            "  `sh.unified(tensor)` works without the name."
        )


class CudaUnavailableError(ShorthaulError, RuntimeError):
    """Something was asked of CUDA that this machine or this PyTorch does not have."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"CUDA cannot be used here: {reason}.\n"
            "  `shorthaul doctor` shows what was found; everything else works without it."
        )
        self.reason = reason


class CudaMappingError(ShorthaulError, RuntimeError):
    """Host memory could not be mapped into a CUDA device, or reads differently there."""

    def __init__(
        self, action: str, address: int, length_bytes: int, reason: str, advice: str
    ) -> None:
        super().__init__(
            f"cannot {action} {format_bytes(length_bytes)} of host memory at {address:#x} for "
            f"CUDA: {reason}.\n  {advice}"
        )
        self.address, self.length_bytes, self.reason = address, length_bytes, reason


class GraphError(ShorthaulError, ValueError):
    """A graph was asked for with tensors, types or relations that do not fit together."""


class EdgeRangeError(GraphError, IndexError):
    """An edge names a node or relation that the graph does not have."""

    def __init__(self, end: str, edge: int, value: int, limit: int, counted: str) -> None:
        known = f"0 to {limit - 1:,}" if limit else "none"
        super().__init__(
            f"the {end} of edge {edge:,} is {value:,}, but there are {limit:,} {counted} ({known})."
        )
        self.edge, self.value = edge, value


class GraphChangedError(ShorthaulError, RuntimeError):
    """A graph's edges were changed in place after the graph was made."""

    def __init__(self, tensors: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(f'`{each}`' for each in tensors)} of the graph changed in place after the "
            "graph was made, so its indexes would be wrong.\n"
            "  A graph does not change: make another one from the changed tensors."
        )


class GraphFileError(GraphError):
    """A file that holds a graph has a line or a part that cannot be read."""

    def __init__(self, path: str | os.PathLike[str], line: int | None, problem: str) -> None:
        where = f", line {line:,}" if line is not None else ""
        super().__init__(f"{os.fspath(path)}{where}: {problem}")
        self.path, self.line = os.fspath(path), line


class SamplingError(GraphError):
    """Neighbors or mini-batches were asked for with fan-outs, seeds or tables that do not fit."""


class SeedRangeError(SamplingError, IndexError):
    """A seed is not a node of the graph."""

    def __init__(self, seed: int, position: int, num_nodes: int) -> None:
        super().__init__(
            f"seed {seed:,} at position {position:,} is no node: the graph has {num_nodes:,}, "
            "numbered from 0."
        )
        self.seed, self.position = seed, position


class RelationalProgramError(ShorthaulError, ValueError):
    """An operation of a relational layer got operands that do not go together."""

    def __init__(self, operation: str, problem: str, operands: str, line: object) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(
            f"`{operation}` cannot be taken: {problem}.{where}\n  operands: {operands}"
        )


class LayerLanguageError(ShorthaulError, TypeError):
    """A relational layer was written with something that its language does not have."""

    def __init__(self, problem: str, instead: str, line: object) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(f"{problem}.{where}\n  Instead: {instead}.")


class LayerArgumentError(ShorthaulError, ValueError, TypeError):
    """A relational layer was made or called with arguments that do not fit it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}.\n  {remedy[:1].upper()}{remedy[1:]}.")


class CompilerDefectError(ShorthaulError, RuntimeError):
    """The compiler of relational layers made something that does not hang together: a defect of shorthaul."""

    def __init__(self, layer: str, stage: str, problem: str, line: object = None) -> None:
        where = f"\n  {line}" if line is not None else ""
        super().__init__(
            f"after `{stage}`, the compiled layer `{layer}` does not hang together: {problem}.{where}\n"
            "  This is a defect of shorthaul, not of the layer: please report it with the layer's "
            "text.\n"
            '  Until it is mended, set `layer.function.backend = "reference"`: plain PyTorch, slower.'
        )


class SecondDerivativeError(ShorthaulError, NotImplementedError):
    """The gradient of a compiled relational layer was differentiated again."""

    def __init__(self, layer: str) -> None:
        super().__init__(
            f"the gradient of the compiled layer `{layer}` was differentiated; it has a first "
            "derivative only.\n"
            '  Set `layer.function.backend = "reference"` for second derivatives: plain PyTorch, '
            "slower.\n"
            "  If one was not meant, leave out create_graph=True."
        )
