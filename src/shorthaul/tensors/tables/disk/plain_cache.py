"""What the row caches decide, in plain Python: the fallback without a compiler, and the oracle.

Each method takes the ids of one batch, all different, as `cache.h` does. Slots are not modeled
where a policy is about ids only: `admit` hands out the slot of what it evicts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

NOWHERE = -1
NEVER = 2**63 - 1


class PlainCache:
    """Ids in slots; a subclass says which id gives way to which."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots: dict[int, int] = {}

    def look_up(self, ids: Sequence[int]) -> list[int]:
        """The slot of each id, or -1."""
        found = []
        for each in ids:
            found.append(self.slots.get(each, NOWHERE))
            self.touch(each)
        return found

    def admit(self, ids: Sequence[int]) -> list[int]:
        """The slot for each id that was missing, or -1 where it gets none."""
        given = [NOWHERE if each in self.slots else self.enter(each) for each in ids]
        return [
            slot if self.slots.get(each) == slot else NOWHERE
            for each, slot in zip(ids, given, strict=True)
        ]

    def expect(self, ids: Sequence[int]) -> None:
        """A later batch will ask for these; most policies do not care."""

    def forget_expected(self) -> None:
        """What was expected will not come."""

    def touch(self, each: int) -> None:
        """An id was looked up."""

    def enter(self, each: int) -> int:
        """Find a slot for an id that is missing."""
        raise NotImplementedError


class PlainStatic(PlainCache):
    """The rows that were named, each kept from its first use on."""

    def __init__(self, capacity: int, hot_ids: Sequence[int]) -> None:
        super().__init__(capacity)
        chosen = list(dict.fromkeys(hot_ids))[:capacity]
        self.own_slots = {each: slot for slot, each in enumerate(chosen)}

    def enter(self, each: int) -> int:
        """Its own slot, if it was named."""
        if each in self.own_slots:
            self.slots[each] = self.own_slots[each]
        return self.own_slots.get(each, NOWHERE)


class PlainSieve(PlainCache):
    """SIEVE: a queue in order of arrival, and a hand that spares once what was used."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.queue: list[int] = []  # oldest first
        self.used: set[int] = set()
        self.hand = 0

    def touch(self, each: int) -> None:
        """A hit is spared once."""
        if each in self.slots:
            self.used.add(each)

    def enter(self, each: int) -> int:
        """The next free slot, or that of the first unused id under the hand."""
        if self.capacity == 0:
            return NOWHERE
        slot = len(self.queue)
        if slot == self.capacity:
            while self.queue[self.hand] in self.used:
                self.used.remove(self.queue[self.hand])
                self.hand = (self.hand + 1) % slot
            slot = self.slots.pop(self.queue.pop(self.hand))
            if self.hand == len(self.queue):
                self.hand = 0  # past the newest: it begins again with the oldest
        self.queue.append(each)
        self.slots[each] = slot
        return slot


class PlainBelady(PlainCache):
    """Keeps the rows whose next expected use is soonest."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.uses: dict[int, deque[int]] = {}
        self.batch = 0

    def expect(self, ids: Sequence[int]) -> None:
        """One more batch, after those expected before."""
        for each in ids:
            self.uses.setdefault(each, deque()).append(self.batch)
        self.batch += 1

    def forget_expected(self) -> None:
        """No use is expected any more."""
        self.uses.clear()

    def touch(self, each: int) -> None:
        """Its next expected use is now."""
        if self.uses.get(each):
            self.uses[each].popleft()

    def when(self, each: int) -> int:
        """The batch that uses it next."""
        return self.uses[each][0] if self.uses.get(each) else NEVER

    def enter(self, each: int) -> int:
        """A free slot, or that of the id used last, if that is after this one."""
        if self.capacity == 0:
            return NOWHERE
        slot = len(self.slots)
        if slot == self.capacity:
            # Of several that are used last, the one in the highest slot, as the heap has it.
            victim = max(self.slots, key=lambda one: (self.when(one), self.slots[one]))
            if self.when(victim) <= self.when(each):
                return NOWHERE
            slot = self.slots.pop(victim)
        self.slots[each] = slot
        return slot
