"""Records of tensors on a GPU: from their device to a pinned buffer, and from there as any other.

The bytes of such a record are not in its buffer when it is packed, but a little later. What the
store does at once for a tensor in memory (sum, write) happens here when they have arrived.
"""

from __future__ import annotations

import weakref

import torch

from shorthaul.fallbacks import note_fallback
from shorthaul.offload.device.copies import DeviceCopier
from shorthaul.offload.saved.identity import find_owner
from shorthaul.offload.saved.record import Record
from shorthaul.offload.store.disk_queues import Slots, WriteLane
from shorthaul.offload.store.payload import Payloads
from shorthaul.storage.buffer_pool import Buffer


class DeviceLane:
    """Records between a device and the host."""

    def __init__(self, copier: DeviceCopier, writes: WriteLane, payloads: Payloads) -> None:
        self.copier = copier
        self._writes, self._payloads = writes, payloads

    @property
    def leaving_bytes(self) -> int:
        """Bytes of buffers that are being filled."""
        return self.copier.leaving_bytes

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on a device that is copied from."""
        return self.copier.backend.is_on_device(tensor)

    def start(
        self,
        record: Record,
        buffer: Buffer,
        slots: Slots,
        content: torch.Tensor,
        tensor: torch.Tensor,
    ) -> None:
        """Begin to copy `content`, the saved range of `tensor`; its write begins when it is there."""
        codec = self._payloads.codec
        if codec is not None:
            reason = f"the tensors are on {tensor.device.type}, and packing is done by the CPU"
            note_fallback(f'compress="{codec.name}"', "writing tensors as they are", reason)
        record.device, record.saved = content.device, weakref.ref(find_owner(tensor))
        record.buffer, record.payload_bytes = buffer, content.numel()
        target = buffer.tensor(torch.uint8, (record.payload_bytes,))
        reference, writes, payloads = weakref.ref(record), self._writes, self._payloads

        def arrive() -> None:
            arrived = reference()
            if arrived is None:  # nobody needs it any more
                writes.spools.give(slots)
                return
            arrived.arrival = None
            arrived.checksum = arrived.content_sum = payloads.sum_of(target)
            writes.start(arrived, buffer, slots)

        record.arrival = self.copier.copy_out(content, target, arrive)

    def finish(self, record: Record) -> None:
        """Return when the record's bytes are in its buffer, and their write has begun."""
        if record.arrival is not None:
            self.copier.wait(record.arrival)

    def finish_oldest(self) -> bool:
        """Wait for the copy that was begun first; false when there is none."""
        return self.copier.wait_for_oldest()

    def bring_back(self, record: Record, buffer: Buffer) -> torch.UntypedStorage:
        """A storage on the record's device, filled before whoever computes next looks at it."""
        assert record.device is not None, "only a record of a device goes back to one"
        content = buffer.tensor(torch.uint8, (record.payload_bytes,))
        copy = self.copier.copy_back(content, record.device)
        record.returned = copy.mark
        return copy.use().untyped_storage()

    def use_again(self, record: Record, storage: torch.UntypedStorage) -> None:
        """What came back before is asked for once more, maybe by another stream than the first."""
        if record.returned is not None:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
            whole.set_(storage, 0, (storage.nbytes(),), (1,))
            self.copier.use(whole, record.returned)
