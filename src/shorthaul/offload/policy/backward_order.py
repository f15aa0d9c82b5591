"""In which order records will be needed again.

PyTorch promises no order for the backward pass, but one step is like the last. The records packed
between two backward passes make one forward pass; what was unpacked in it, and in which order, is
remembered by the sizes it was made of, and is the guess for the next pass of the same sizes. The
first guess is the reverse of packing. A wrong guess costs one read on demand.
"""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from shorthaul.offload.saved.record import Record, State

REMEMBERED_PASSES = 64
# A pass of so many records is looked through for those that nobody needs any more, and again when it
# is twice as long as it was then.
SMALLEST_LONG_PASS = 256

Clock = Callable[[], float]


class Place(NamedTuple):
    """Where in a forward pass a record was packed; the same in a pass that recomputes regions."""

    region: int | None = None  # the region it is in, counted from the start of the pass
    regions_before: int = 0
    is_input: bool = False  # of the region: it was there before
    number: int = 0  # among those of the same region, or between the same two


class RegionCall:
    """One call of a region, under way."""

    def __init__(self, index: int, inputs: Collection[int], started_at: float) -> None:
        self.index, self.inputs, self.started_at = index, inputs, started_at


class ForwardPass:
    """The records packed with no unpacking in between, and how far their backward pass is."""

    def __init__(self, tag: object = None, now: Clock = time.perf_counter) -> None:
        self.tag, self._now = tag, now
        self.sizes: list[int] = []
        self.names: list[str] = []
        self.packed_at: list[float] = []  # seconds of the clock, which may leave out waiting
        self.used_at: dict[int, tuple[float, float]] = {}  # first and last use, by position
        self.used: list[int] = []  # positions, in the order of their first use
        self.places: list[Place] = []
        self.shared: set[int] = set()  # positions saved again outside of the region they are in
        self.regions_entered = 0
        self.region_seconds: dict[int, float] = {}  # what one more run of it would take
        self._counted: dict[tuple[int | None, int, bool], int] = {}  # by place, without number
        self._records: list[weakref.ref[Record]] = []
        self._seen: set[int] = set()
        self._order: list[int] | None = None
        self._rank: dict[int, int] = {}
        self._settled = 0  # ranks below this one never have to be read any more
        self._dead = 0  # entries at the front that nobody needs any more
        self._long = SMALLEST_LONG_PASS
        self._is_cut = False

    @property
    def next_position(self) -> int:
        """The position of the record that is packed next."""
        return len(self.sizes)

    def place_of(self, storage: int, call: RegionCall | None) -> Place:
        """Where a storage that is packed next lies."""
        region, before, is_input = None, self.regions_entered, False
        if call is not None:
            region, before, is_input = call.index, call.index, storage in call.inputs
        number = self._counted.get((region, before, is_input), 0)
        return Place(region, before, is_input, number)

    def add(self, record: Record, place: Place | None = None) -> None:
        """A record was packed."""
        place = place or self.place_of(record.key.storage, None)
        group = place[:3]
        self._counted[group] = self._counted.get(group, 0) + 1
        self.places.append(place)
        self.sizes.append(record.size_bytes)
        self.names.append(f"{record.position}: {record.scope}")
        self.packed_at.append(self._now())
        self._records.append(weakref.ref(record))

    def note_use(self, position: int) -> None:
        """A record was unpacked."""
        now = self._now()
        first, _ = self.used_at.setdefault(position, (now, now))
        self.used_at[position] = (first, now)
        if position not in self._seen:
            self._seen.add(position)
            self.used.append(position)

    @property
    def is_over(self) -> bool:
        """Whether every record has been used, or is no longer needed by anybody."""
        return len(self.used) == len(self.sizes) or not any(each() for each in self._records)

    @property
    def is_whole(self) -> bool:
        """Whether every record that was packed has been used."""
        return len(self.used) == len(self.sizes) and not self._is_cut

    @property
    def outline(self) -> tuple[tuple[int, ...], tuple[Place, ...], tuple[int, ...]]:
        """What tells a pass from one of another kind: sizes, places, and which of them were used."""
        return tuple(self.sizes), tuple(self.places), tuple(sorted(self.used))

    @property
    def is_dropped(self) -> bool:
        """Whether its graph is gone without a backward pass."""
        while self._dead < len(self.sizes) and self._records[self._dead]() is None:
            self._dead += 1
        return self._dead == len(self.sizes) and not self.used

    def cut_dropped(self) -> None:
        """Forget the records that nobody needs, if none is used yet and they are most of many.

        Passes that are never followed by a backward pass would make this one longer and longer.
        """
        if len(self.sizes) < self._long or self.used or self._order:
            return
        living = [(at, each()) for at, each in enumerate(self._records)]
        kept = [at for at, record in living if record is not None]
        self._long = max(SMALLEST_LONG_PASS, 2 * len(self.sizes))
        if 2 * len(kept) > len(self.sizes):
            return
        self._long = max(SMALLEST_LONG_PASS, 2 * len(kept))
        self._dead, self._is_cut = 0, True
        columns: tuple[list[Any], ...] = (
            self.sizes,
            self.names,
            self.packed_at,
            self.places,
            self._records,
        )
        for column in columns:
            column[:] = [column[at] for at in kept]
        self.shared = {at for at, before in enumerate(kept) if before in self.shared}
        for at, before in enumerate(kept):
            record = living[before][1]
            if record is not None:
                record.position = at

    def expect(self, order: Sequence[int]) -> None:
        """Guess that records will be needed in this order of positions."""
        self._order = list(order)
        self._settled = 0
        self._rank = {position: rank for rank, position in enumerate(self._order)}

    @property
    def has_expectation(self) -> bool:
        """Whether `expect` has been called."""
        return self._order is not None

    def upcoming(self, position: int | None) -> Iterator[Record]:
        """Living records expected after `position` (`None`: from the start), the next one first."""
        order = self._order or []
        # Without this, every use would look at all that are kept: quadratic in their number.
        while self._settled < len(order) and self._is_settled(order[self._settled]):
            self._settled += 1
        start = 0 if position is None else self._rank.get(position, -1) + 1
        for rank in range(max(start, self._settled), len(order)):
            each = order[rank]
            record = self._records[each]() if each not in self._seen else None
            if record is not None:
                yield record

    def _is_settled(self, position: int) -> bool:
        """Whether a record was used, is forgotten, or is kept in memory for good."""
        record = None if position in self._seen else self._records[position]()
        return record is None or record.state is State.KEPT


class BackwardOrder:
    """Forward passes under way, and the orders learned from those that are over."""

    def __init__(self, now: Clock = time.perf_counter) -> None:
        self._now = now
        self.current = ForwardPass(now=now)
        self.waiting: collections.OrderedDict[int, ForwardPass] = collections.OrderedDict()
        self.hinted: ForwardPass | None = None
        self.last_over: ForwardPass | None = None
        self._learned: collections.OrderedDict[tuple[int, ...], list[int]] = (
            collections.OrderedDict()
        )
        self._is_in_backward = False
        self._tag: object = None
        self._last_outline: object = None

    def note_packed(self, record: Record, place: Place | None = None) -> None:
        """A record was packed; after an unpacking, that begins another forward pass."""
        self.begin_pass_if_needed()
        self.current.add(record, place)
        record.forward_pass = self.current
        self.waiting[id(self.current)] = self.current

    def note_saved_again(self, record: Record, call: RegionCall | None) -> None:
        """A record was saved by another tensor, in `call` or between regions."""
        own = record.forward_pass
        if own is not None:
            region = own.places[record.position].region
            if region is not None and (call is None or call.index != region):
                own.shared.add(record.position)

    def enter_region(self, inputs: Collection[int]) -> RegionCall:
        """A region begins, whose inputs lie in these storages."""
        self.begin_pass_if_needed()
        self.forget_dropped()
        index = self.current.regions_entered
        self.current.regions_entered += 1
        return RegionCall(index, inputs, self._now())

    def leave_region(self, call: RegionCall) -> None:
        """A region ended."""
        self.current.region_seconds[call.index] = max(0.0, self._now() - call.started_at)

    def begin_pass_if_needed(self) -> None:
        """Start another forward pass if the last event was an unpacking."""
        if self._is_in_backward:
            self._is_in_backward = False
            self.current = ForwardPass(self._tag, self._now)
            for each in [each for each in self.waiting.values() if each.is_over]:
                self._learn(each)

    def forget_dropped(self) -> None:
        """Start another forward pass, outside of regions, if the last one came to nothing.

        After an exception, or a forward pass without a backward one, what comes next is at the
        start of a pass, as plans and orders know it, and not at the end of an abandoned one.
        """
        if not self.current.sizes:
            return
        if self.current.is_dropped:
            self.waiting.pop(id(self.current), None)
            self.current = ForwardPass(self._tag, self._now)
        else:
            self.current.cut_dropped()

    def mark(self, tag: object) -> None:
        """Records packed from now on belong to the micro-batch `tag`."""
        self._tag = tag
        if self.current.sizes:
            self.current = ForwardPass(tag, self._now)
        else:
            self.current.tag = tag

    def hint(self, tag: object) -> ForwardPass | None:
        """The backward pass of micro-batch `tag` comes next."""
        found = [each for each in self.waiting.values() if each.tag == tag]
        self.hinted = found[0] if found else None
        if self.hinted is not None:
            self._prepare(self.hinted)
        return self.hinted

    def note_unpacked(self, record: Record) -> Iterator[Record]:
        """A record was unpacked; gives those expected after it, the next one first."""
        self._is_in_backward = True
        own = record.forward_pass
        if own is None:
            return iter(())
        self._prepare(own)
        own.note_use(record.position)
        if id(own) in self.waiting and own.is_over:  # once, though some are used again
            self._learn(own)
        return self._following(own, record.position)

    def _following(self, own: ForwardPass, position: int) -> Iterator[Record]:
        yield from own.upcoming(position)
        # Then the pass that was named, else the oldest one that waits: the order of 1F1B schedules.
        after = self.hinted or next(
            (each for each in self.waiting.values() if each is not own and not each.used), None
        )
        if after is not None and after is not own and after is not self.current:
            self._prepare(after)
            yield from after.upcoming(None)

    def _prepare(self, own: ForwardPass) -> None:
        if not own.has_expectation:
            learned = self._learned.get(tuple(own.sizes))
            own.expect(learned if learned is not None else range(len(own.sizes) - 1, -1, -1))

    def _learn(self, own: ForwardPass) -> None:
        """The backward pass of `own` is over: remember its order.

        Others may learn from it, too, unless it is one that was broken off or partly dropped: not
        all of it was used, and the pass before was not like it.
        """
        self.waiting.pop(id(own), None)
        if self.hinted is own:
            self.hinted = None
        if not own.used:
            return
        outline = own.outline
        if own.is_whole or outline == self._last_outline:
            self.last_over = own
        self._last_outline = outline
        signature = tuple(own.sizes)
        unused = [position for position in range(len(own.sizes)) if position not in own.used_at]
        self._learned[signature] = own.used + unused
        self._learned.move_to_end(signature)
        while len(self._learned) > REMEMBERED_PASSES:
            self._learned.popitem(last=False)
