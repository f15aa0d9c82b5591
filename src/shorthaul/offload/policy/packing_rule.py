"""`compress="auto"`: whether activations should be packed before they are written.

| disk                                  | pack?                                                      |
| its daily writes are limited          | yes, if it makes them fewer                                |
| the model hardly waits for it         | no: packing takes time, and nobody waits for what it saves |
| slower than packing would make it     | yes                                                        |
| faster than that, or no core is free  | no                                                         |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shorthaul.errors import MissingExtraError
from shorthaul.offload.codecs.compression import (
    Codec,
    CodecRates,
    choose_codec,
    measure_codec,
    worth_compressing,
)
from shorthaul.offload.policy.simulation import Disk

# Waiting for less than this share of a step is not worth a codec's work.
SMALLEST_STALL_SHARE = 0.05
# Fewer bytes by less than this are not worth unpacking them.
SMALLEST_RATIO = 1.05
SAMPLE_BYTES = 2**20


@dataclass(frozen=True)
class Verdict:
    """Whether to pack, and why."""

    should_pack: bool
    reason: str


def choose_packing(
    rates: CodecRates,
    disk: Disk,
    *,
    stall_share: float,
    is_wear_limited: bool,
    has_free_core: bool,
) -> Verdict:
    """The rule above, from what was measured: `stall_share` of the step's time was spent waiting."""
    if rates.ratio < SMALLEST_RATIO:
        return Verdict(False, f"packing makes it only {rates.ratio:.2f} times smaller")
    if is_wear_limited:
        return Verdict(
            True, f"writes are limited, and packed they are {rates.ratio:.2f} times fewer"
        )
    if stall_share < SMALLEST_STALL_SHARE:
        return Verdict(False, f"the disk keeps up: {stall_share:.1%} of a step is spent waiting")
    disk_rate = min(disk.write_bytes_per_second, disk.read_bytes_per_second)
    codec_rate = min(rates.compress_bytes_per_second, rates.decompress_bytes_per_second)
    described = (
        f"the disk moves {disk_rate / 1e6:,.0f} MB/s, packing {codec_rate / 1e6:,.0f} MB/s to "
        f"{rates.ratio:.2f} times fewer bytes"
    )
    if not has_free_core:
        return Verdict(False, f"no core is free for it: {described}")
    if not worth_compressing(rates.ratio, codec_rate, disk_rate, has_free_core=True):
        return Verdict(False, f"the disk is fast enough: {described}")
    return Verdict(True, f"{stall_share:.0%} of a step is spent waiting: {described}")


def has_free_core() -> bool:
    """Whether this process may use more cores than PyTorch computes with."""
    return len(os.sched_getaffinity(0)) > torch.get_num_threads()


class AutomaticPacking:
    """Looks at a sample of what is saved and at finished steps until packing is worth it."""

    def __init__(self, measure_disk: Callable[[], Disk | None], *, is_wear_limited: bool) -> None:
        try:
            self._codec = choose_codec("lz4")
        except MissingExtraError:
            self._codec = choose_codec("mask")
        self._measure_disk = measure_disk
        self._is_wear_limited = is_wear_limited
        self._sample: torch.Tensor | None = None
        self._rates: CodecRates | None = None
        self._disk: Disk | None = None
        self.verdict = Verdict(False, "no step is over yet")

    @property
    def wants_sample(self) -> bool:
        """Whether no tensor has been looked at yet."""
        return self._sample is None

    def note_saved(self, tensor: torch.Tensor) -> None:
        """Keep a part of the first large tensor of floating-point numbers as a sample.

        Tensors on a GPU leave as they are, so that they are none.
        """
        if tensor.is_cpu and tensor.is_floating_point() and tensor.is_contiguous():
            self._sample = tensor.detach().flatten()[: SAMPLE_BYTES // tensor.itemsize].clone()

    def learn(self, *, step_seconds: float, stall_seconds: float) -> Codec | None:
        """A step is over; the codec to use from now on."""
        if self.verdict.should_pack or self._sample is None:
            return self._codec if self.verdict.should_pack else None
        share = stall_seconds / step_seconds if step_seconds > 0 else 0.0
        if not self._is_wear_limited and share < SMALLEST_STALL_SHARE:
            self.verdict = Verdict(False, f"the disk keeps up: {share:.1%} of a step is waiting")
            return None
        self._rates = self._rates or measure_codec(self._codec, self._sample)
        self._disk = self._disk or self._measure_disk()
        if self._disk is None:
            return None
        self.verdict = choose_packing(
            self._rates,
            self._disk,
            stall_share=share,
            is_wear_limited=self._is_wear_limited,
            has_free_core=has_free_core(),
        )
        return self._codec if self.verdict.should_pack else None
