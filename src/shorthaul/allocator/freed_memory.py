"""What becomes of the memory that tensors free, once a process offloads: a rule for the whole process, set once."""

from __future__ import annotations

from shorthaul.allocator.tensor_pool import PoolUnavailableError, TensorPool
from shorthaul.fallbacks import note_fallback
from shorthaul.host_memory import give_memory_back, has_own_allocator, return_large_blocks
from shorthaul.settings import settings


class FreedMemory:
    """The rule of the setting `freed_memory`; what the user has chosen in the environment goes before it."""

    def __init__(self) -> None:
        self._is_settled = False
        self.pool: TensorPool | None = None  # of large tensors, where there is one

    def settle(self) -> None:
        """Follow the setting from now on; what was freed before goes back to the system."""
        if self._is_settled or settings.freed_memory == "keep":
            return
        self._is_settled = True
        if has_own_allocator():
            return
        if settings.freed_memory == "reuse":
            self.pool = _open_pool()
        if self.pool is None:
            return_large_blocks()
        give_memory_back()


def _open_pool() -> TensorPool | None:
    try:
        return TensorPool.open()
    except PoolUnavailableError as error:
        note_fallback("memory of tensors", "malloc, which gives large blocks back", str(error))
        return None


freed_memory = FreedMemory()
