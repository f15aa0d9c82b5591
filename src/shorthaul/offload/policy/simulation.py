"""One training step played through on paper: what stays in memory, what waits for the disk.

Given when each saved storage is produced and used, and what is decided for it, the simulation moves
a clock from event to event. It follows the rules of the real thing:

- **write lane**: stores in the order of production, one at a time. Bytes waiting or being written
  are bounded by `in_flight_bytes`; the forward pass waits when the bound is reached.
- **forwarding**: a use, or the read-ahead, that meets a store still in flight takes the bytes from
  memory. A store that has not begun is cancelled and writes nothing.
- **read lane**: apart from the write lane. From the first use on, it reads ahead in the order of
  use while the bytes loaded and not yet used fit `prefetch_bytes` (one storage always may). What
  somebody waits for goes first; a read that has begun is not interrupted.
- **the budget**, where one is given, holds both back: what is produced waits while stores in flight
  can still make room for it, and nothing is read ahead without room. What does not fit even so is
  held all the same, and shows as a peak above the budget.
- **recomputing** is done by region, all of it or none: its storages are not held in between, and are
  all made again, in `recompute_seconds` each, when the first of them is used. The region's inputs are
  the units that name the region but have no `recompute_seconds`: they are kept or offloaded, and
  must be there when recomputing starts.

>>> unit = Unit("x", 100, 100, 0.0, first_use_at_seconds=10.0, last_use_at_seconds=11.0)
>>> slow = Disk(write_bytes_per_second=100.0, read_bytes_per_second=50.0)
>>> run = simulate_step([unit], [Decision.OFFLOAD], slow, in_flight_bytes=100, prefetch_bytes=100)
>>> run.stall_seconds, run.step_seconds, run.peak_live_bytes
(2.0, 13.0, 100)
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shorthaul.errors import PlanError


class Decision(enum.Enum):
    """What becomes of one storage between its production and its use."""

    KEEP = "keep"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Unit:
    """One unique storage of a step; times count from the start of the step, without any waiting."""

    name: str
    size_bytes: int  # in memory
    stored_bytes: int  # on disk: rounded up to blocks, after compression
    produced_at_seconds: float
    first_use_at_seconds: float  # first use in the backward pass
    last_use_at_seconds: float
    region: str | None = None  # the region that can be recomputed to make it again
    recompute_seconds: float | None = None  # its share of the region's time; None: an input of it

    def __post_init__(self) -> None:
        times = (self.produced_at_seconds, self.first_use_at_seconds, self.last_use_at_seconds)
        if not (0 <= times[0] <= times[1] <= times[2] < math.inf):
            raise PlanError(
                f"unit {self.name}: expected 0 <= produced <= first use <= last use, got {times}."
            )
        if self.size_bytes < 0 or self.stored_bytes < 0:
            raise PlanError(
                f"unit {self.name}: sizes cannot be negative, got {self.size_bytes} bytes in "
                f"memory and {self.stored_bytes} stored."
            )
        seconds = self.recompute_seconds
        if seconds is not None and (self.region is None or not 0 <= seconds < math.inf):
            raise PlanError(
                f"unit {self.name}: recompute_seconds needs a region and a time of at least 0, "
                f"got {seconds} in region {self.region}."
            )

    @property
    def can_recompute(self) -> bool:
        """Whether recomputing its region makes it again."""
        return self.recompute_seconds is not None

    def at_pace(self, pace: float) -> Unit:
        """The same storage in a step that takes `pace` times as long."""
        seconds = self.recompute_seconds
        return replace(
            self,
            produced_at_seconds=self.produced_at_seconds * pace,
            first_use_at_seconds=self.first_use_at_seconds * pace,
            last_use_at_seconds=self.last_use_at_seconds * pace,
            recompute_seconds=None if seconds is None else seconds * pace,
        )


@dataclass(frozen=True)
class Disk:
    """What the scratch disk delivers, in each direction, for requests as large as a storage."""

    write_bytes_per_second: float
    read_bytes_per_second: float
    latency_seconds: float = 0.0  # added to every request

    def __post_init__(self) -> None:
        rates = (self.write_bytes_per_second, self.read_bytes_per_second)
        if not all(rate > 0 for rate in rates) or not 0 <= self.latency_seconds < math.inf:
            raise PlanError(
                f"expected a disk with positive rates and a latency of at least 0, got {self}."
            )

    def write_seconds(self, unit: Unit) -> float:
        """How long the write lane is busy with one unit."""
        return self.latency_seconds + unit.stored_bytes / self.write_bytes_per_second

    def read_seconds(self, unit: Unit) -> float:
        """How long the read lane is busy with one unit."""
        return self.latency_seconds + unit.stored_bytes / self.read_bytes_per_second


@dataclass(frozen=True)
class Span:
    """One bar of the picture: what a lane did from when to when."""

    lane: str  # "write", "read", "stall", "recompute"
    name: str  # the unit, or the region
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True)
class Simulation:
    """What one step would do."""

    step_seconds: float  # with everything waited for and recomputed
    stall_seconds: float
    recompute_seconds: float
    peak_live_bytes: int
    peak_at_seconds: float
    peak_in_flight_bytes: int
    written_bytes: int
    read_bytes: int
    forwarded: tuple[str, ...]  # offloaded, yet used from memory
    never_written: tuple[str, ...]  # of those, the ones whose store was cancelled
    live_bytes: tuple[tuple[float, int], ...]  # the steps of the curve: (seconds, bytes from then)
    spans: tuple[Span, ...]

    @property
    def extra_seconds(self) -> float:
        """What the decisions cost: waiting and recomputing."""
        return self.stall_seconds + self.recompute_seconds


def simulate_step(
    units: Sequence[Unit],
    decisions: Sequence[Decision],
    disk: Disk,
    *,
    in_flight_bytes: int,
    prefetch_bytes: int,
    budget_bytes: int | None = None,
    has_spans: bool = True,
) -> Simulation:
    """Play one step through with `decisions[i]` for `units[i]`; the module says by which rules.

    `has_spans` keeps what each lane did, for pictures; a search does without.
    """
    _require_valid(units, decisions)
    return _Step(
        units, decisions, disk, in_flight_bytes, prefetch_bytes, budget_bytes, has_spans
    ).run()


def _require_valid(units: Sequence[Unit], decisions: Sequence[Decision]) -> None:
    if len(units) != len(decisions):
        raise PlanError(
            f"expected one decision for each of {len(units)} units, got {len(decisions)}."
        )
    by_region: dict[str | None, set[bool]] = defaultdict(set)
    for unit, decision in zip(units, decisions, strict=True):
        is_recomputed = decision is Decision.RECOMPUTE
        if is_recomputed and not unit.can_recompute:
            raise PlanError(f"unit {unit.name} cannot be recomputed: keep or offload it.")
        if unit.can_recompute:
            by_region[unit.region].add(is_recomputed)
    for region, choices in by_region.items():
        if len(choices) > 1:
            raise PlanError(f"region {region}: recompute all of its units or none.")


class _State(enum.Enum):
    UNBORN = enum.auto()  # not produced, or offloaded and not yet admitted to the write queue
    QUEUED = enum.auto()
    WRITING = enum.auto()
    ON_DISK = enum.auto()
    LOADING = enum.auto()
    IN_MEMORY = enum.auto()


# Events of one moment happen in this order: autograd frees what an operator has used before the next
# one asks for its own. What is used and freed in the same moment is freed last.
_RELEASE, _PRODUCE, _USE, _RELEASE_AT_ONCE = range(4)


class _Step:
    """The moving parts of one simulation; used once, and only by `simulate_step`."""

    def __init__(
        self,
        units: Sequence[Unit],
        decisions: Sequence[Decision],
        disk: Disk,
        in_flight_limit_bytes: int,
        prefetch_limit_bytes: int,
        budget_bytes: int | None,
        has_spans: bool,
    ) -> None:
        self.units, self.decisions, self.disk = units, decisions, disk
        self.has_spans = has_spans
        self.is_writing = self.is_reading = False
        self.budget_bytes = budget_bytes
        self.in_flight_limit_bytes = in_flight_limit_bytes
        self.prefetch_limit_bytes = prefetch_limit_bytes
        self.now = self.stall_seconds = self.recompute_seconds = 0.0
        self.live_bytes = self.in_flight_bytes = self.peak_in_flight_bytes = 0
        self.written_bytes = self.read_bytes = 0
        self.curve: list[tuple[float, int]] = [(0.0, 0)]
        self.spans: list[Span] = []
        self.state = [_State.UNBORN] * len(units)
        self.write_queue: deque[int] = deque()
        self.lanes: list[
            tuple[float, str, int]
        ] = []  # a heap of (done at, lane, unit); at most two
        self.is_held_after_write: set[int] = set()
        self.is_released: set[int] = set()
        self.forwarded: dict[int, None] = {}
        self.never_written: list[int] = []
        self.demanded: int | None = None
        self.window: set[int] = set()  # brought or held ahead of their use
        self.window_bytes = 0
        self.regions: dict[str | None, list[int]] = defaultdict(list)
        for index, decision in enumerate(decisions):
            if decision is Decision.RECOMPUTE:
                self.regions[units[index].region].append(index)
        self.first_use_at = self._first_uses()
        # What the read lane looks through; it never goes back, so the whole look-ahead is linear.
        self.use_order = sorted(
            (i for i, decision in enumerate(decisions) if decision is Decision.OFFLOAD),
            key=lambda i: (self.first_use_at[i], i),
        )
        self.ahead = 0
        self.has_backward_begun = False

    def _first_uses(self) -> list[float]:
        """First uses, with the inputs of a recomputed region needed where recomputing starts."""
        starts = {
            region: min(self.units[i].first_use_at_seconds for i in members)
            for region, members in self.regions.items()
        }
        return [
            unit.first_use_at_seconds
            if unit.can_recompute or unit.region not in starts
            else max(
                unit.produced_at_seconds,
                min(unit.first_use_at_seconds, starts[unit.region]),
            )
            for unit in self.units
        ]

    def run(self) -> Simulation:
        events: list[tuple[float, int, int, int]] = []
        for index, unit in enumerate(self.units):
            # At one moment an input is used before the region that is recomputed from it.
            after_inputs = int(self.decisions[index] is Decision.RECOMPUTE)
            events.append((unit.produced_at_seconds, _PRODUCE, 0, index))
            events.append((self.first_use_at[index], _USE, after_inputs, index))
            is_brief = self.first_use_at[index] == unit.last_use_at_seconds
            release = _RELEASE_AT_ONCE if is_brief else _RELEASE
            events.append((unit.last_use_at_seconds, release, 0, index))
        handlers = (self._release, self._produce, self._use, self._release)
        for seconds, kind, _, index in sorted(events):
            self._advance(seconds + self.stall_seconds + self.recompute_seconds)
            handlers[kind](index)
        step_seconds = self.now
        while self.lanes:  # a store that outlives the last use still holds its bytes
            self._finish_next()
        peak_at_seconds, peak_bytes = max(self.curve, key=lambda point: point[1])
        return Simulation(
            step_seconds=step_seconds,
            stall_seconds=self.stall_seconds,
            recompute_seconds=self.recompute_seconds,
            peak_live_bytes=peak_bytes,
            peak_at_seconds=peak_at_seconds,
            peak_in_flight_bytes=self.peak_in_flight_bytes,
            written_bytes=self.written_bytes,
            read_bytes=self.read_bytes,
            forwarded=tuple(self.units[i].name for i in self.forwarded),
            never_written=tuple(self.units[i].name for i in self.never_written),
            live_bytes=tuple(self.curve),
            spans=tuple(self.spans),
        )

    # -- the model's own events ---------------------------------------------------------------

    def _produce(self, index: int) -> None:
        unit, decision = self.units[index], self.decisions[index]
        if decision is Decision.RECOMPUTE:
            return
        if decision is Decision.OFFLOAD:
            self._wait(
                "the write queue to take {}",
                index,
                lambda: (
                    self.in_flight_bytes == 0
                    or self.in_flight_bytes + unit.size_bytes <= self.in_flight_limit_bytes
                ),
            )
        self._wait(
            "room for {}",
            index,
            lambda: self.in_flight_bytes == 0 or self._has_room(unit.size_bytes),
        )
        self._hold(unit.size_bytes)
        if decision is Decision.KEEP:
            self.state[index] = _State.IN_MEMORY
            return
        self.in_flight_bytes += unit.size_bytes
        self.peak_in_flight_bytes = max(self.peak_in_flight_bytes, self.in_flight_bytes)
        self.state[index] = _State.QUEUED
        self.write_queue.append(index)
        self._start_write()

    def _use(self, index: int) -> None:
        self.has_backward_begun = True
        decision = self.decisions[index]
        if decision is Decision.RECOMPUTE:
            self._recompute(self.units[index].region)
        elif decision is Decision.OFFLOAD:
            self._hold_in_flight(index)
            if self.state[index] is _State.ON_DISK:
                self.demanded = index
                self._start_read()
            self._wait(
                "{} from disk",
                index,
                lambda: self.state[index] in (_State.IN_MEMORY, _State.WRITING),
            )
            if index in self.window:
                self.window.discard(index)
                self.window_bytes -= self.units[index].size_bytes
            while self.ahead < len(self.use_order) and (
                self.first_use_at[self.use_order[self.ahead]],
                self.use_order[self.ahead],
            ) <= (self.first_use_at[index], index):
                self.ahead += 1
        self._start_read()

    def _release(self, index: int) -> None:
        if self.state[index] is _State.WRITING:
            self.is_released.add(index)  # the store holds it a little longer
        else:
            self._hold(-self.units[index].size_bytes)
            self._start_read()  # there may be room now

    def _recompute(self, region: str | None) -> None:
        members = self.regions.pop(region, [])  # empty when an earlier use has done it
        seconds = sum(self.units[i].recompute_seconds or 0.0 for i in members)
        for index in members:
            self.state[index] = _State.IN_MEMORY
            self._hold(self.units[index].size_bytes)
        if seconds > 0:
            if self.has_spans:
                self.spans.append(Span("recompute", str(region), self.now, self.now + seconds))
            self.recompute_seconds += seconds
            self._advance(self.now + seconds)

    # -- the lanes ----------------------------------------------------------------------------

    def _start_write(self) -> None:
        if self.write_queue and not self.is_writing:
            index = self.write_queue.popleft()
            self.state[index] = _State.WRITING
            self._occupy("write", index, self.disk.write_seconds(self.units[index]))

    def _start_read(self) -> None:
        """Hand the idle read lane what is waited for, else what comes next within the window."""
        if self.demanded is not None:
            if not self.is_reading:
                self._load(self.demanded)
                self.demanded = None
            return
        if not self.has_backward_begun:
            return
        while self.ahead < len(self.use_order):
            index = self.use_order[self.ahead]
            size_bytes = self.units[index].size_bytes
            is_full = self.window and self.window_bytes + size_bytes > self.prefetch_limit_bytes
            if self.state[index] is _State.UNBORN or is_full:
                return
            if self.state[index] is _State.ON_DISK:
                if self.is_reading or not self._has_room(size_bytes):
                    return
                self._load(index)
            self._hold_in_flight(index)
            self.window.add(index)
            self.window_bytes += size_bytes
            self.ahead += 1

    def _load(self, index: int) -> None:
        self.state[index] = _State.LOADING
        self._hold(self.units[index].size_bytes)
        self._occupy("read", index, self.disk.read_seconds(self.units[index]))

    def _hold_in_flight(self, index: int) -> None:
        """Forwarding: take a unit whose store is in flight from memory."""
        if self.state[index] is _State.QUEUED:
            self.write_queue.remove(index)
            self.in_flight_bytes -= self.units[index].size_bytes
            self.state[index] = _State.IN_MEMORY
            self.never_written.append(index)
            self.forwarded[index] = None
        elif self.state[index] is _State.WRITING:
            self.is_held_after_write.add(index)
            self.forwarded[index] = None

    def _occupy(self, lane: str, index: int, seconds: float) -> None:
        heapq.heappush(self.lanes, (self.now + seconds, lane, index))
        if lane == "read":
            self.is_reading = True
        else:
            self.is_writing = True
        if self.has_spans:
            self.spans.append(Span(lane, self.units[index].name, self.now, self.now + seconds))

    def _finish_next(self) -> None:
        self.now, lane, index = heapq.heappop(self.lanes)
        unit = self.units[index]
        if lane == "read":
            self.is_reading = False
            self.read_bytes += unit.stored_bytes
            self.state[index] = _State.IN_MEMORY
        else:
            self.is_writing = False
            self.written_bytes += unit.stored_bytes
            self.in_flight_bytes -= unit.size_bytes
            is_held = index in self.is_held_after_write and index not in self.is_released
            self.state[index] = _State.IN_MEMORY if is_held else _State.ON_DISK
            if not is_held:
                self._hold(-unit.size_bytes)
            self._start_write()
        self._start_read()

    # -- clock and memory -----------------------------------------------------------------------

    def _advance(self, seconds: float) -> None:
        while self.lanes and self.lanes[0][0] <= seconds:
            self._finish_next()
        self.now = max(self.now, seconds)

    def _wait(self, reason: str, index: int, is_over: Callable[[], bool]) -> None:
        if is_over():
            return
        started = self.now
        while not is_over():
            self._finish_next()
        if self.now > started:
            self.stall_seconds += self.now - started
            if self.has_spans:
                why = reason.format(self.units[index].name)
                self.spans.append(Span("stall", why, started, self.now))

    def _has_room(self, size_bytes: int) -> bool:
        return self.budget_bytes is None or self.live_bytes + size_bytes <= self.budget_bytes

    def _hold(self, change_bytes: int) -> None:
        self.live_bytes += change_bytes
        if self.curve[-1][0] == self.now and self.curve[-1][1] <= self.live_bytes:
            self.curve.pop()  # only the highest value of a rise within one moment
        self.curve.append((self.now, self.live_bytes))
