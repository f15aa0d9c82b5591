from __future__ import annotations

import torch

from shorthaul.offload.codecs.compression import choose_codec
from shorthaul.offload.saved.counts import Counts
from shorthaul.offload.saved.identity import find_key
from shorthaul.offload.saved.record import Record, State
from shorthaul.offload.store.payload import COMPARED_EVERY, Payloads
from shorthaul.storage.buffer_pool import BufferPool
from tests.offload.records import make_record


def move(codec: str | None, tensor: torch.Tensor) -> tuple[torch.Tensor, Record, Counts]:
    """The numbers of `tensor` after packing, filling a buffer and opening it."""
    counts = Counts()
    payloads = Payloads(None if codec is None else choose_codec(codec), counts)
    key = find_key(tensor)
    record = make_record(tensor, State.STORING)
    with BufferPool("1MiB") as pool:
        payload = payloads.make(tensor, key)
        buffer = pool.take(payload.length_bytes)
        payloads.fill(record, buffer, payload, tensor)
        assert payloads.is_intact(record, buffer)
        storage = payloads.open(record, buffer, pool.take)
        back = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
        back = back.clone()
        buffer.memory[17] ^= 1
        assert not payloads.is_intact(record, buffer)
    return back, record, counts


def test_plain_bytes_are_what_they_were():
    tensor = torch.randn(64, 32)
    back, record, counts = move(None, tensor)
    assert torch.equal(back, tensor)
    assert record.payload_bytes == tensor.nbytes
    assert record.checksum == record.content_sum
    assert counts.compressed == 0


def test_a_mask_is_packed_and_its_content_is_known_by_the_sum_of_the_plain_bytes():
    tensor = (torch.rand(64, 64) > 0.5).float()
    back, record, counts = move("mask", tensor)
    assert torch.equal(back, tensor)
    assert record.payload_bytes < tensor.nbytes / 16
    assert counts.compressed_bytes == tensor.nbytes - record.payload_bytes
    assert record.content_sum == Payloads(None, Counts()).sum_of(tensor.view(torch.uint8).flatten())


def test_what_a_codec_does_not_make_smaller_is_left_as_it_is():
    back, record, counts = move("mask", torch.randn(64, 64))
    assert record.codec is None
    assert counts.compressed == 0
    assert torch.isfinite(back).all()


def test_a_lossy_codec_says_what_it_lost():
    tensor = torch.randn(64, 64)
    back, _, counts = move("int8", tensor)
    error = ((back - tensor).norm() / tensor.norm()).item()
    assert 0 < error < 0.02
    assert (
        counts.worst_activation_error == error or abs(counts.worst_activation_error - error) < 1e-6
    )


def test_only_one_of_many_tensors_is_compared():
    counts = Counts()
    payloads = Payloads(choose_codec("int8"), counts)
    small, large = torch.randn(64, 64), torch.randn(64, 64)
    large[:, 0] *= 1000  # one value per row takes the scale
    payloads.make(small, find_key(small))
    first = counts.worst_activation_error
    for _ in range(COMPARED_EVERY - 1):
        payloads.make(large, find_key(large))
    assert counts.worst_activation_error == first
    payloads.make(large, find_key(large))
    assert counts.worst_activation_error != first
