"""Storages that outlived the graph that saved them: buffers, constants, data."""

from __future__ import annotations

from shorthaul.offload.saved.identity import StorageReference

# They are looked through for dead ones when there are more of them than this, and then when they have
# doubled.
SMALLEST_LIMIT = 64


class LivingStorages:
    """Those known to live anyway: to save them again would give no memory back."""

    def __init__(self) -> None:
        self._references: dict[int, StorageReference] = {}  # by the address of the storage
        self._limit = SMALLEST_LIMIT

    def __len__(self) -> int:
        return len(self._references)

    def __contains__(self, storage: int) -> bool:
        reference = self._references.get(storage)
        if reference is None:
            return False
        if not reference.is_alive:
            del self._references[storage]
            return False
        return True

    def note(self, storage: int, reference: StorageReference) -> None:
        """It lived when its graph was gone."""
        self._references[storage] = reference
        if len(self._references) > self._limit:
            living = {at: each for at, each in self._references.items() if each.is_alive}
            self._references, self._limit = living, max(SMALLEST_LIMIT, 2 * len(living))
