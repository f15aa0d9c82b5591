"""Errors about unified tensors: rows, files of tables, places, devices."""

from __future__ import annotations

import errno as errno_codes
import os
from collections.abc import Sequence

from shorthaul.errors.root import ShorthaulError
from shorthaul.errors.storage import ShortReadError, StorageError
from shorthaul.units import format_bytes


class RowIndexError(ShorthaulError, IndexError):
    """A row was asked for by a number that the table does not have."""

    def __init__(self, index: int, position: int, rows: int) -> None:
        if rows:
            there_are = f"the table has {rows:,} rows, so ids go from {-rows} to {rows - 1}"
        else:
            there_are = "the table has no rows"
        super().__init__(f"row id {index} at position {position} is out of range: {there_are}.")
        self.index, self.position, self.rows = index, position, rows


class LateRowIndexError(ShorthaulError, IndexError):
    """An earlier gather on a device was given a row id that its table does not have."""

    def __init__(self, position: int, device: str) -> None:
        super().__init__(
            f"an earlier gather on {device} was given a row id that its table does not have, at "
            f"position {position:,} of its ids. What it gathered there is zeros.\n"
            "  With SHORTHAUL_DEVICE_CHECKS=at_once the gather itself raises, and names the id."
        )
        self.position = position


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


class GradientPlaceError(ShorthaulError, RuntimeError):
    """An operator on a GPU would bring a gradient there to a table in host memory."""

    def __init__(self, operation: str, device: str) -> None:
        super().__init__(
            f"`{operation}` of a unified tensor that requires gradients runs on {device}, and its "
            "gradient would lie there, but the tensor lies in host memory.\n"
            "  Gather the rows that are needed, u[ids], whose gradients come back; compute on the CPU, "
            "u.cpu(); or use torch.no_grad()."
        )


class DeviceRoomError(ShorthaulError, RuntimeError):
    """An operator on a GPU needs a table that the GPU can neither read where it lies nor hold."""

    def __init__(self, operation: str, needed_bytes: int, free_bytes: int, device: str) -> None:
        super().__init__(
            f"`{operation}` on {device} needs a copy of a unified tensor of "
            f"{format_bytes(needed_bytes)}, but {format_bytes(free_bytes)} are free there, and its "
            "memory cannot be mapped.\n"
            "  Read the rows that are needed, u[ids], or compute on the CPU: u.cpu()."
        )


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
