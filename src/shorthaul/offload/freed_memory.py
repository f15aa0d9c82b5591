"""What a process that offloads frees goes back to the system, so that its resident memory falls, too."""

from __future__ import annotations

from shorthaul.host_memory import give_memory_back, return_large_blocks
from shorthaul.settings import settings


class FreedMemory:
    """The C library's rule for freed memory, which is the whole process's: it is set once."""

    def __init__(self) -> None:
        self._is_settled = False

    def return_it(self) -> None:
        """Have large blocks returned from now on, unless the setting or the user's environment says otherwise."""
        if self._is_settled or settings.freed_memory == "keep":
            return
        self._is_settled = True
        if return_large_blocks():
            give_memory_back()  # what was freed under the rule before


freed_memory = FreedMemory()
