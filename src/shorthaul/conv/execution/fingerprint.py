"""What tells whether the values of a tensor have changed since they were last looked at.

A tensor's version does not: writes through `.data`, through NumPy, from another process or from a kernel of
somebody else's raise none, and tensors made in inference mode have none. So all values are looked at.

>>> import torch
>>> weight = torch.zeros(100, 100)
>>> before = fingerprint(weight)
>>> weight.data[17, 3] = 1e-30
>>> fingerprint(weight) == before
False
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref

import torch
from torch import nn

from shorthaul.errors import KernelPendingError
from shorthaul.jit import (
    CppSource,
    Function,
    KernelFunction,
    NumberArgument,
    ThreadsArgument,
    can_use_kernels,
)
from shorthaul.jit.compiling.loading import kept_when_ready, load_when_ready
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings

# Up to here a copy is taken and compared in less time than a kernel is called.
EXACT_BYTES = 16384
# A thread that is woken up takes longer than this much to read.
_BYTES_PER_THREAD = 1 << 18


_frozen: dict[int, weakref.ref[torch.Tensor]] = {}


def freeze_weights(model: nn.Module) -> None:
    """Promise that a model's weights change by PyTorch's operators on them alone, never through `.data`.

    Convolutions then ask for the version of a weight and no longer look at its values, which is worth it
    where weights are large and images small. Loading a state dict is noticed, and so is every in-place
    operator; writes through `.data`, NumPy or other processes are not. No parameter needs a gradient
    afterwards; one that is given `requires_grad` again is looked at again.

    >>> model = nn.Conv2d(3, 8, 3)
    >>> freeze_weights(model)
    >>> model.weight.requires_grad
    False
    """
    for key, reference in list(
        _frozen.items()
    ):  # not when they go: Python code there loses signals
        if reference() is None:
            _frozen.pop(key, None)
    model.requires_grad_(False)
    for each in itertools.chain(model.parameters(), model.buffers()):
        freeze(each)


def freeze(tensor: torch.Tensor) -> None:
    """Trust the version of a tensor from now on, for as long as it needs no gradient."""
    _frozen[id(tensor)] = weakref.ref(tensor)


def look_at(tensor: torch.Tensor) -> object:
    """Equal as long as a tensor lies as it does and has the values that it has; `None` where nobody can tell."""
    frozen = _frozen.get(id(tensor)) if _frozen else None
    if (
        frozen is not None
        and frozen() is tensor
        and not (tensor.is_inference() or tensor.requires_grad)
    ):
        return tensor._version, tensor.data_ptr(), tensor.stride(), tensor.dtype
    values = fingerprint(tensor)
    return None if values is None else (values, tensor.stride(), tensor.dtype)


def fingerprint(tensor: torch.Tensor) -> bytes | int | None:
    """Equal as long as no value of the tensor changes; `None` where nobody can tell.

    Small tensors are their own bytes. Of larger ones it is a hash of 64 bits over the memory that they
    span: a change within one aligned word of eight bytes always changes it, any other change all but
    once in 2^64. Nobody can tell on other devices than the CPU (reading would wait for all work that
    was handed to them), of tensors without memory of their own, and of large ones without a compiler or while it is at work.
    """
    if not tensor.is_cpu:
        return None
    span_bytes = _span_bytes(tensor.shape, tensor.stride(), tensor.itemsize)
    if span_bytes == 0:
        return b""
    address = tensor.data_ptr()
    if address == 0:  # wraps another tensor, as sharded parameters do, or its storage was released
        return None
    if span_bytes <= EXACT_BYTES:
        return ctypes.string_at(address, span_bytes)
    if not _can_hash(settings.kernels):
        return None
    threads = min(kernel_threads(), -(-span_bytes // _BYTES_PER_THREAD))
    try:
        hashed: int = hash_function().at(address, span_bytes, threads)
    except KernelPendingError:
        return None
    return hashed


@functools.lru_cache(maxsize=4096)
def _span_bytes(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> int:
    """From a tensor's first value to its last."""
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (1 + last) * item_bytes


@functools.lru_cache
def _can_hash(wanted: str) -> bool:  # noqa: ARG001 (asked anew when the setting changes)
    return can_use_kernels("convolution")


@kept_when_ready
def hash_function() -> KernelFunction:
    """The hash of some bytes in memory."""
    function = Function(
        "hash_bytes",
        (NumberArgument("values", "address"), NumberArgument("size", "int64"), ThreadsArgument()),
        returns="int64",
    )
    text = _TEXT.replace("{PROTOTYPE}", function.prototype())
    source = CppSource("conv_fingerprint", text, (function,))
    kernel: KernelFunction = load_when_ready(source, "weights packed anew by each call").hash_bytes
    return kernel


_TEXT = """\
// A hash of 64 bits over memory. Each step is one-to-one in the word and in the sum so far: memory that differs in
// one word has another hash.
#include <cstring>
#include <vector>

#include "shorthaul/jit/include/parallel.h"

constexpr int64_t chunk_bytes = 1 << 15;
constexpr int lanes = 32;  // sums that do not wait for each other: products of 64 bits take fifteen cycles

static inline uint64_t add_word(uint64_t sum, uint64_t word) {
  sum ^= word;
  return (sum << 29 | sum >> 35) * 0x9E3779B185EBCA87u;
}

static uint64_t hash_chunk(const char* bytes, int64_t size) {
  uint64_t sums[lanes], words[lanes];
  for (int lane = 0; lane < lanes; ++lane) sums[lane] = 0xC2B2AE3D27D4EB4Fu * uint64_t(lane + 1);
  int64_t at = 0;
  for (; at + int64_t(sizeof words) <= size; at += sizeof words) {
    std::memcpy(words, bytes + at, sizeof words);
    for (int lane = 0; lane < lanes; ++lane) sums[lane] = add_word(sums[lane], words[lane]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, bytes + at, size_t(size - at));
  for (int lane = 0; lane < lanes; ++lane) sums[lane] = add_word(sums[lane], words[lane]);
  uint64_t sum = uint64_t(size);
  for (int lane = 0; lane < lanes; ++lane) sum = add_word(sum, sums[lane]);
  return sum ^ sum >> 32;
}

// Chunks are of one size, whatever the number of threads.
{PROTOTYPE} {
  const char* bytes = static_cast<const char*>(values);
  const int64_t chunks = (size + chunk_bytes - 1) / chunk_bytes;
  std::vector<uint64_t> sums(chunks);
  shorthaul::parallel_for(chunks, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * chunk_bytes;
      sums[chunk] = hash_chunk(bytes + first, size - first < chunk_bytes ? size - first : chunk_bytes);
    }
  });
  uint64_t sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum = add_word(sum, sums[chunk]);
  return int64_t(sum);
}
"""
