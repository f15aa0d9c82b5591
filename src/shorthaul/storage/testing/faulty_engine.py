"""An engine on which chosen requests go wrong, to see what the code above it does then.

>>> import errno, tempfile
>>> from shorthaul.storage.file import open_file
>>> from shorthaul.storage.memory_engine import MemoryEngine
>>> engine = faulty_engine(MemoryEngine(), [Fault("errno", 2, code=errno.ENOSPC)])
>>> with engine, open_file(tempfile.gettempdir(), "scratch") as file:
...     engine.write(file, 0, bytes(100)).wait()
...     try:
...         engine.write(file, 100, bytes(100)).wait()
...     except OSError as error:
...         print(error.strerror.splitlines()[0].partition("failed at ")[2])
bytes 100 to 200: ENOSPC (No space left on device).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shorthaul.storage.engine import END_OF_FILE, IN_FLIGHT_BYTES, Action, StorageEngine
from shorthaul.storage.queue_engine import (
    Job,
    Outcome,
    OuterEngine,
    Transfer,
)

Kind = Literal["errno", "short", "flip", "slow", "hang"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the `nth` request, counted from 1 in the order of submission.

    | kind  | what happens                                                                     |
    | errno | nothing is moved; the request fails with `code`                                  |
    | short | only the first `moved_bytes` are moved: a truncated file, or a write cut off     |
    | flip  | one `bit` of the data is wrong on arrival, and nobody says so                    |
    | slow  | it takes `seconds` longer                                                        |
    | hang  | it takes until `release_hung` is called or the engine is closed                  |

    With `action`, only reads or only writes are counted; with `onwards`, every later request is
    hit as well. Each range of a batch counts.
    """

    kind: Kind  # see above
    nth: int = 1  # request, counted from 1
    action: Action | None = None  # read, write, or both
    onwards: bool = False  # every later request as well
    code: int = errno.EIO  # of an errno
    moved_bytes: int = 0  # of a short
    bit: int = 0  # of a flip
    seconds: float = 0.05  # of a slow

    def hits(self, job: Job, index: int) -> bool:
        """Whether range `index` of a job is one that goes wrong.

        Args:
            job: The request.
            index: Which of its ranges.
        """
        if self.action is None:
            number = job.number + index
        elif self.action == job.request.action:
            number = job.action_number + index
        else:
            return False
        return number >= self.nth if self.onwards else number == self.nth


class FaultyEngine(OuterEngine):
    """The requests of another engine, of which some go wrong.

    Args:
        inner: The engine that does the work.
        faults: What goes wrong, and where.
        depth: Requests that may be at `inner` at once (default 8).
        in_flight_bytes: Bytes of unfinished tickets, above which submitting waits (default 512
            MiB).
    """

    name = "faulty"

    def __init__(
        self,
        inner: StorageEngine,
        faults: Sequence[Fault],
        *,
        depth: int = 8,
        in_flight_bytes: int | str = IN_FLIGHT_BYTES,
    ) -> None:
        self.faults = tuple(faults)
        self._released = threading.Event()
        # Pieces as long as any request, and of one range: a fault hits a whole request.
        super().__init__(
            inner,
            depth=depth,
            in_flight_bytes=in_flight_bytes,
            piece_bytes=2**62,
            piece_ranges=1,
        )

    def _start_afresh(self) -> None:
        self._released = threading.Event()
        super()._start_afresh()

    def release_hung(self) -> None:
        """Let every request that hangs, and those that would, go on."""
        self._released.set()

    def _transfer(self, job: Job, transfer: Transfer) -> Outcome:
        for fault in self.faults:
            if fault.hits(job, transfer.range_index):
                return self._go_wrong(fault, job, transfer)
        return super()._transfer(job, transfer)

    def _go_wrong(self, fault: Fault, job: Job, transfer: Transfer) -> Outcome:
        first = transfer.position_bytes
        memory = job.memory[first : first + transfer.length_bytes]
        if fault.kind == "errno":
            return Outcome(0, fault.code)
        if fault.kind == "short":
            moved_bytes = min(fault.moved_bytes, transfer.length_bytes - 1)
            outcome = self._forward(job, transfer, memory[:moved_bytes])
            code = errno.EIO if job.request.is_write else END_OF_FILE
            return Outcome(moved_bytes, code if outcome.code is None else outcome.code)
        if fault.kind == "flip":
            return self._flip(fault, job, transfer, memory)
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        else:
            self._released.wait()
            if self._is_closing:
                raise self._closed_error()
        return self._forward(job, transfer, memory)

    def _flip(self, fault: Fault, job: Job, transfer: Transfer, memory: memoryview) -> Outcome:
        place, bit = divmod(fault.bit % (8 * transfer.length_bytes), 8)
        if job.request.is_write:
            wrong = bytearray(memory)  # the caller's memory stays as it is; the disk gets this
            wrong[place] ^= 1 << bit
            return self._forward(job, transfer, memoryview(wrong))
        outcome = self._forward(job, transfer, memory)
        memory[place] ^= 1 << bit
        return outcome

    def close(self) -> None:
        """Close; requests that hang end with `EngineClosedError`."""
        with self._lock:
            self._is_closing = True
        self._released.set()
        super().close()

    def __repr__(self) -> str:
        return f"<faulty engine: {len(self.faults)} faults, over {self.inner.name}>"


def faulty_engine(inner: StorageEngine, faults: Sequence[Fault]) -> FaultyEngine:
    """`inner`, but the requests that `faults` name go wrong. Closing it closes `inner`.

    Args:
        inner: The engine that does the work.
        faults: What goes wrong, and where.
    """
    return FaultyEngine(inner, faults)
