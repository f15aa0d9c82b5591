"""Which saved tensors leave memory.

| policy     | offloads                                                                          |
| `all`      | everything that is large enough                                                   |
| `auto`     | without a budget everything; with one, what the plan of the last steps says       |
| `ssdtrain` | the published adaptive rule: a prefix that the disk can take, decided once        |
| a callable | whatever it returns true for, given a `SavedTensor`                               |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from shorthaul.offload.drive.spool import round_to_blocks
from shorthaul.offload.policy.backward_order import ForwardPass, Place
from shorthaul.offload.policy.planner import Measured, Plan, explain_drift, plan_step
from shorthaul.offload.policy.simulation import Decision, Disk, Unit
from shorthaul.offload.policy.ssdtrain import Scope, choose_ssdtrain, estimate_ssdtrain_bandwidth
from shorthaul.storage.buffer_pool import choose_class_bytes

_log = logging.getLogger("shorthaul")


class SavedTensor(NamedTuple):
    """What a policy is told about a storage that autograd is saving."""

    size_bytes: int  # of the storage
    dtype: str  # such as float32
    shape: tuple[int, ...]  # of the tensor that was saved first
    scope: str  # the modules around it, such as `GPT.Block.Linear`
    position: int  # how many were saved before it in this forward pass
    place: Place = Place()  # the same by regions


class Policy(Protocol):
    """Decides for each storage as it is saved, and learns from forward passes that are over."""

    name: str
    recomputed: frozenset[int]  # regions, counted from the start of a pass, to be computed again

    def prepare(self) -> None:
        """Called once, before the first tensor is saved."""

    def should_offload(self, saved: SavedTensor) -> bool:
        """Whether this one leaves memory."""

    def learn(self, finished: ForwardPass) -> None:
        """A forward pass and its backward pass are over."""

    def explain(self) -> str:
        """What is being done now, and why."""


class OffloadAll:
    """Everything that is large enough leaves memory."""

    name = "all"
    recomputed: frozenset[int] = frozenset()

    def prepare(self) -> None:
        """Nothing to prepare."""

    def should_offload(self, saved: SavedTensor) -> bool:
        """Always."""
        return saved.size_bytes > 0

    def learn(self, finished: ForwardPass) -> None:
        """Nothing to learn."""

    def explain(self) -> str:
        """One sentence."""
        return "everything of at least `minimum_bytes` is offloaded"


class OffloadChosen:
    """What the user's function returns true for leaves memory."""

    name = "callable"
    recomputed: frozenset[int] = frozenset()

    def __init__(self, choose: Callable[[SavedTensor], bool]) -> None:
        self._choose = choose

    def prepare(self) -> None:
        """Nothing to prepare."""

    def should_offload(self, saved: SavedTensor) -> bool:
        """Whatever the function says."""
        return bool(self._choose(saved))

    def learn(self, finished: ForwardPass) -> None:
        """Nothing to learn."""

    def explain(self) -> str:
        """One sentence."""
        return f"{self._choose!r} decides"


class OffloadPlanned:
    """Under a budget: the first pass offloads everything, later ones follow a plan made from it.

    A plan is for one sequence of sizes. Where a pass departs from it, everything is offloaded, which
    fits any budget that can work at all.
    """

    name = "auto"

    def __init__(
        self,
        *,
        budget_bytes: int,
        in_flight_bytes: int,
        prefetch_bytes: int,
        measure_disk: Callable[[], Disk | None],
        limit_writes: Callable[[float], Sequence[int | None]] = lambda _: (None,),
    ) -> None:
        self.plan: Plan | None = None
        self.plans_made = 0
        self.drift: tuple[str, ...] = ()
        self._budget_bytes = budget_bytes
        self._in_flight_bytes, self._prefetch_bytes = in_flight_bytes, prefetch_bytes
        self._measure_disk = measure_disk
        self._limit_writes = (
            limit_writes  # for a step of a given number of seconds, the strictest first
        )
        self._disk: Disk | None = None
        self._measured: Measured | None = None
        self.recomputed: frozenset[int] = frozenset()
        self._planned: dict[Place, tuple[int, Decision]] = {}

    def prepare(self) -> None:
        """Measure the disk while nothing is in memory yet."""
        self._disk = self._measure_disk()

    def should_offload(self, saved: SavedTensor) -> bool:
        """As planned for a storage of this size at this place."""
        planned = self._planned.get(saved.place)
        if planned is None or planned[0] != held_bytes(saved.size_bytes):
            return True
        return planned[1] is not Decision.KEEP

    def learn(self, finished: ForwardPass) -> None:
        """Plan when there is no plan yet, or when sizes, times or the disk have drifted."""
        units = units_of(finished)
        self._disk = self._disk or self._measure_disk()
        if not units or self._disk is None:
            return
        latest = self._measure_pass(units, finished, self._disk)
        self._measured = latest if self._measured is None else self._measured.smoothed(latest)
        if self.plan is not None:
            self.drift = explain_drift(self.plan, self._measured)
            if not self.drift:
                return
            self._disk = self._measure_disk() or self._disk
            if self.recomputed:
                self._plan_again(self.plan, self._measured, self._disk)
                return
            self._measured = latest
        self._follow(self._make_plan(units, self._disk), finished.places)

    def _plan_again(self, plan: Plan, measured: Measured, disk: Disk) -> None:
        """A drift under a plan that recomputes, whose passes do not show what regions save.

        Where the sizes are the old ones, so are the storages: only their times are others. Otherwise
        the next pass is looked at as a whole, with everything offloaded.
        """
        sizes = replace(
            measured,
            write_bytes_per_second=plan.disk.write_bytes_per_second,
            read_bytes_per_second=plan.disk.read_bytes_per_second,
            compute_seconds=plan.compute_seconds,
        )
        if explain_drift(plan, sizes):
            self.plan, self._measured = None, None
            self._planned, self.recomputed = {}, frozenset()
            return
        pace = measured.compute_seconds / max(plan.compute_seconds, 1e-9)
        units = [unit.at_pace(pace) for unit in plan.units]
        self._follow(self._make_plan(units, disk), tuple(self._planned))

    def _measure_pass(self, units: list[Unit], finished: ForwardPass, disk: Disk) -> Measured:
        """What a pass showed, with what it recomputed put as the plan has it."""
        seconds = max(unit.last_use_at_seconds for unit in units)
        saved_bytes = sum(unit.size_bytes for unit in units)
        if self.plan is not None and self.recomputed:
            seconds -= self.plan.simulation.recompute_seconds
            again_bytes = sum(
                size for size, decision in self._planned.values() if decision is Decision.RECOMPUTE
            )
            saved_bytes = again_bytes + sum(
                unit.size_bytes
                for unit, place in zip(units, finished.places, strict=True)
                if place in self._planned
            )
        return Measured(
            disk.write_bytes_per_second,
            disk.read_bytes_per_second,
            max(seconds, 1e-9),
            saved_bytes,
        )

    def _make_plan(self, units: list[Unit], disk: Disk) -> Plan:
        """A plan within the strictest limit on writes that allows one to fit."""
        seconds = max(unit.last_use_at_seconds for unit in units)
        for limit_bytes in self._limit_writes(seconds):
            plan = plan_step(
                units,
                budget_bytes=self._budget_bytes,
                disk=disk,
                in_flight_bytes=self._in_flight_bytes,
                prefetch_bytes=self._prefetch_bytes,
                endurance_bytes_per_step=limit_bytes,
            )
            if plan.fits:
                break
        else:
            _log.warning("offload: %s", plan.explain().split("\n  What follows")[0])
        return plan

    def _follow(self, plan: Plan, places: Sequence[Place]) -> None:
        self.plans_made += 1
        self.plan = plan
        pairs = list(zip(places, plan.units, plan.decisions, strict=True))
        self._planned = {place: (unit.size_bytes, what) for place, unit, what in pairs}
        self.recomputed = frozenset(
            place.region
            for place, _, what in pairs
            if what is Decision.RECOMPUTE and place.region is not None
        )

    def explain(self) -> str:
        """The plan, or why there is none yet."""
        if self.plan is None:
            return (
                "no plan yet: everything is offloaded until one forward and backward pass is over"
            )
        made = f"plan number {self.plans_made}"
        if self.drift:
            made += f", made because of drift ({'; '.join(self.drift)})"
        return f"{made}\n{self.plan.explain()}"


class OffloadPrefix:
    """The published adaptive rule: what is saved last, and used first, stays in memory.

    As published, sizes come from the first pass and times from the third, the decision is made once,
    and the disk's bandwidth is all that was saved over the time from the first store to the last,
    whether or not the disk could have gone faster. Scopes are runs of tensors of the same modules.
    """

    name = "ssdtrain"
    recomputed: frozenset[int] = frozenset()
    PROFILED_PASS = 2

    def __init__(self) -> None:
        self._passes = 0
        self._kept_from: int | None = None  # position of the first tensor that is kept

    def prepare(self) -> None:
        """Nothing to prepare."""

    def should_offload(self, saved: SavedTensor) -> bool:
        """Whether it belongs to the prefix."""
        return self._kept_from is None or saved.position < self._kept_from

    def learn(self, finished: ForwardPass) -> None:
        """Decide once, from the profiled pass."""
        self._passes += 1
        if self._passes != self.PROFILED_PASS + 1 or len(finished.packed_at) < 2:
            return
        ends = [*finished.packed_at[1:], finished.packed_at[-1]]
        scopes: list[Scope] = []
        for position, size in enumerate(finished.sizes):
            seconds = ends[position] - finished.packed_at[position]
            scopes.append(Scope(finished.names[position], seconds, size))
        bandwidth = estimate_ssdtrain_bandwidth(
            sum(finished.sizes), finished.packed_at[-1] - finished.packed_at[0]
        )
        decisions = choose_ssdtrain(scopes, bytes_per_second=bandwidth)
        kept = [at for at, decision in enumerate(decisions) if decision is Decision.KEEP]
        self._kept_from = kept[0] if kept else len(decisions)

    def explain(self) -> str:
        """What was decided."""
        if self._kept_from is None:
            return f"everything is offloaded until pass {self.PROFILED_PASS + 1} has been profiled"
        return f"the first {self._kept_from} tensors are offloaded, the rest is kept"


def held_bytes(size_bytes: int) -> int:
    """What a storage of this size takes in the buffer pool, which is what the budget counts."""
    return choose_class_bytes(round_to_blocks(size_bytes))


def units_of(finished: ForwardPass) -> list[Unit]:
    """The storages of a pass with the times at which they were saved and used.

    One that was never used counts as used at the end: it was held until then. What a region saved
    for itself can be recomputed, and takes a share of the region's time by its size.
    """
    if not finished.packed_at:
        return []
    started = finished.packed_at[0]
    end = max([last for _, last in finished.used_at.values()], default=finished.packed_at[-1])
    own_bytes: Counter[int] = Counter()
    own: list[int | None] = []  # the region that makes it, if running that again would
    for position, place in enumerate(finished.places):
        is_own = not place.is_input and position not in finished.shared
        is_timed = place.region in finished.region_seconds
        own.append(place.region if is_own and is_timed else None)
        if own[-1] is not None:
            own_bytes[own[-1]] += finished.sizes[position]
    units = []
    for position, (size, name, packed) in enumerate(
        zip(finished.sizes, finished.names, finished.packed_at, strict=True)
    ):
        first, last = finished.used_at.get(position, (end, end))
        place, region = finished.places[position], own[position]
        is_named = region is not None or (place.is_input and own_bytes[place.region or 0] > 0)
        seconds = None
        if region is not None:
            seconds = finished.region_seconds[region] * size / max(1, own_bytes[region])
        units.append(
            Unit(
                name,
                held_bytes(size),
                round_to_blocks(size),
                packed - started,
                max(packed, first) - started,
                max(packed, last) - started,
                f"region {place.region}" if is_named else None,
                seconds,
            )
        )
    return units
