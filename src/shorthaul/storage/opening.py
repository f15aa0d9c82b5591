"""Which engine serves: the one asked for by name, or the best that works here."""

from __future__ import annotations

from typing import Any

from shorthaul.errors import EngineUnavailableError
from shorthaul.fallbacks import note_fallback
from shorthaul.settings import settings
from shorthaul.storage.engine import StorageEngine
from shorthaul.storage.memory_engine import MemoryEngine
from shorthaul.storage.thread_engine import ThreadEngine
from shorthaul.storage.uring_engine import UringEngine


def open_engine(name: str | None = None, **options: Any) -> StorageEngine:
    """Open a storage engine by name, or the one that `settings.engine` chooses.

    Args:
        name: `"uring"`, `"thread"` or `"memory"`, which is that engine or an
            `EngineUnavailableError`; `"auto"` takes io_uring where it works and threads elsewhere,
            and says so once. None (default) takes the setting.
        options: The same for all: `depth` (requests at the disk at once) and `in_flight_bytes`
            (bytes of unfinished tickets, above which submitting waits).
    """
    chosen = name or settings.engine
    if chosen == "auto":
        try:
            return UringEngine(**options)
        except EngineUnavailableError as error:
            note_fallback("storage engine", "threads", error.reason)
            return ThreadEngine(**options)
    engines: dict[str, type[UringEngine | ThreadEngine | MemoryEngine]] = {
        each.name: each for each in (UringEngine, ThreadEngine, MemoryEngine)
    }
    if chosen not in engines:
        raise EngineUnavailableError(chosen, f"there are auto, {', '.join(engines)}")
    return engines[chosen](**options)
