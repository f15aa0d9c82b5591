"""The bytes that are written for a saved range, and the range again from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from shorthaul.offload.codecs.compression import Codec, measure_distortion
from shorthaul.offload.codecs.copying import Copier
from shorthaul.offload.saved.counts import Counts
from shorthaul.offload.saved.identity import StorageKey, bytes_of_range
from shorthaul.offload.saved.record import Record
from shorthaul.storage.buffer_pool import Buffer

# A payload that is not at least this much smaller is written as it is: unpacking costs time too.
SMALLEST_GAIN = 0.95
# One in this many tensors that a lossy codec packs is unpacked at once, to see what was lost.
COMPARED_EVERY = 16


class Payload(NamedTuple):
    """The bytes to write for a range: the range itself, or what a codec packed it into."""

    address: int
    length_bytes: int
    codec: Codec | None = None
    packed: torch.Tensor | None = None  # keeps the bytes at the address, where a codec made them


class Payloads:
    """Makes payloads, puts them into buffers, verifies them and opens them again."""

    def __init__(self, codec: Codec | None, counts: Counts) -> None:
        self.codec = codec  # may be exchanged at any time: a record remembers its own
        self._counts = counts
        self._copier = Copier()

    def make(self, tensor: torch.Tensor, key: StorageKey) -> Payload:
        """The bytes of the range, or fewer where a codec makes them fewer."""
        storage = tensor.untyped_storage()
        assert key.start_bytes + key.length_bytes <= storage.nbytes(), "a range is in its storage"
        plain = Payload(storage.data_ptr() + key.start_bytes, key.length_bytes)
        codec = self.codec
        if codec is None or key.length_bytes % tensor.itemsize:
            return plain
        numbers = _as_rows(bytes_of_range(tensor, key).view(tensor.dtype), tensor.shape[-1:])
        packed = codec.compress(numbers)
        if packed.numel() >= SMALLEST_GAIN * key.length_bytes:
            return plain
        if not codec.is_lossless and self._counts.compressed % COMPARED_EVERY == 0:
            error = measure_distortion(codec, numbers).relative
            self._counts.worst_activation_error = max(self._counts.worst_activation_error, error)
        self._counts.compressed += 1
        self._counts.compressed_bytes += key.length_bytes - packed.numel()
        return Payload(packed.data_ptr(), packed.numel(), codec, packed)

    def fill(self, record: Record, buffer: Buffer, payload: Payload, tensor: torch.Tensor) -> None:
        """Copy a payload of `tensor` into the record's buffer, with the sums to know it by."""
        assert payload.length_bytes <= buffer.length_bytes, "a buffer is as long as its payload"
        record.buffer, record.payload_bytes = buffer, payload.length_bytes
        record.codec, record.dtype, record.row = payload.codec, tensor.dtype, tensor.shape[-1:]
        record.checksum = record.content_sum = self._copier.copy_and_sum(
            payload.address, buffer.address, payload.length_bytes
        )
        if payload.codec is not None:
            record.content_sum = self.sum_of(bytes_of_range(tensor, record.key))

    def is_intact(self, record: Record, buffer: Buffer) -> bool:
        """Whether what came back is what went."""
        return self._copier.sum_only(buffer.address, record.payload_bytes) == record.checksum

    def open(
        self, record: Record, buffer: Buffer, take: Callable[[int], Buffer]
    ) -> torch.UntypedStorage:
        """A storage with the record's bytes, from the payload in `buffer`."""
        content = buffer.tensor(torch.uint8, (record.payload_bytes,))
        if record.codec is None:
            return content.untyped_storage()
        whole = take(record.size_bytes)
        numbers = whole.tensor(record.dtype, (record.size_bytes // record.dtype.itemsize,))
        record.codec.decompress(content, _as_rows(numbers, record.row))
        return numbers.untyped_storage()

    def sum_of(self, content: torch.Tensor) -> int:
        """The sum that tells these bytes from others."""
        return self._copier.sum_only(content.data_ptr(), content.numel())


def _as_rows(flat: torch.Tensor, row: Sequence[int]) -> torch.Tensor:
    """The numbers of a storage in rows as its first tensor has them, where they divide evenly."""
    length = row[0] if len(row) else 1
    return flat.view(-1, length) if length > 1 and flat.numel() % length == 0 else flat
