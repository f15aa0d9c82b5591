"""Bytes to and from disk: ranges -> plan -> ticket -> buffers."""

from shorthaul.storage.buffer_pool import NO_LIMIT_BYTES, Buffer, BufferPool
from shorthaul.storage.coalesce import ReadPlan, plan_reads
from shorthaul.storage.engine import (
    EngineStats,
    Failure,
    Priority,
    StorageEngine,
    Ticket,
)
from shorthaul.storage.file import StorageFile, open_file
from shorthaul.storage.memory_engine import MemoryEngine
from shorthaul.storage.opening import open_engine
from shorthaul.storage.testing.faulty_engine import Fault, FaultyEngine, faulty_engine
from shorthaul.storage.testing.throttled_engine import ThrottledEngine, throttled_engine
from shorthaul.storage.thread_engine import ThreadEngine
from shorthaul.storage.uring_engine import UringEngine

__all__ = [
    "NO_LIMIT_BYTES",
    "Buffer",
    "BufferPool",
    "EngineStats",
    "Failure",
    "Fault",
    "FaultyEngine",
    "MemoryEngine",
    "Priority",
    "ReadPlan",
    "StorageEngine",
    "StorageFile",
    "ThreadEngine",
    "ThrottledEngine",
    "Ticket",
    "UringEngine",
    "faulty_engine",
    "open_engine",
    "open_file",
    "plan_reads",
    "throttled_engine",
]
