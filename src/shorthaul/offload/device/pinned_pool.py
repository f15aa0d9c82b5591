"""A buffer pool whose memory CUDA can copy to and from without waiting.

The buffers are those of every pool: aligned for the disk, reused, within a budget. CUDA is told of a
region when it is first handed out, once. Where it refuses, as at the limit on locked memory, the
buffer is pageable: copies of it are right, and make the host wait.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from shorthaul.errors import CudaMappingError
from shorthaul.fallbacks import note_fallback
from shorthaul.storage.buffer_pool import BufferPool
from shorthaul.tensors.cuda.registration import HostRegistry, Lease

if TYPE_CHECKING:
    from shorthaul.storage.buffer_pool import Region

# A copy by the device's engine must not cross from one registration into another.
WHOLE_REGION_BYTES = 2**48


def open_registry() -> HostRegistry:
    """The registry for a pool of this process: a region is registered as a whole."""
    from shorthaul.tensors.cuda.runtime import load_runtime

    return HostRegistry(load_runtime(), chunk_bytes=WHOLE_REGION_BYTES)


class PinnedBufferPool(BufferPool):
    """Pinned buffers; memory is unregistered before it goes back to the system."""

    moves_pages = False  # CUDA knows them by their addresses

    def __init__(
        self,
        budget_bytes: int | str,
        registry: HostRegistry | None = None,
        *,
        why: str = "pinned buffers",
    ) -> None:
        self.registry = registry or open_registry()
        # The lease keeps the mapping, so a region that is dropped is unregistered first.
        self._leases: weakref.WeakKeyDictionary[Region, Lease | None] = weakref.WeakKeyDictionary()
        super().__init__(budget_bytes, why=why)

    def _find(self, class_bytes: int, limit_bytes: int) -> Region | None:
        region = super()._find(class_bytes, limit_bytes)
        if region is not None and region not in self._leases:
            memory = region.lease()
            address, length_bytes = memory.ctypes.data, memory.nbytes
            del memory
            try:
                lease = self.registry.lease(address, length_bytes, region.mapping)
            except CudaMappingError as error:
                note_fallback("pinned buffers", "pageable memory, copied more slowly", error.reason)
                lease = None
            self._leases[region] = lease
        return region
