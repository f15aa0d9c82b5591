"""Bits of equal weight side by side: what makes floating-point numbers compressible.

The exponents of neighboring activations are alike and their last bits are noise. Storing bit 0 of
many numbers, then bit 1 of them, and so on, gives a fast compressor long runs to find in the first
and lets it pass over the others quickly. Within each block of `BLOCK_ELEMENTS` numbers::

    element 0: byte 0, byte 1, ..      ->     plane 0: bit 0 of byte 0 of elements 0, 1, 2, ..
    element 1: byte 0, byte 1, ..             plane 1: bit 1 of byte 0 of elements 0, 1, 2, ..
    ..                                        ..       then the bits of byte 1, and so on

What is left after the last whole block is copied as it is.

>>> source = torch.arange(5000, dtype=torch.int16).view(torch.uint8)
>>> planes, back = torch.empty_like(source), torch.empty_like(source)
>>> shuffle(source, 2, planes)
>>> unshuffle(planes, 2, back)
>>> torch.equal(back, source), planes[:4].tolist()  # bit 0 of 0, 1, 2, .. is 0, 1, 0, 1, ..
(True, [170, 170, 170, 170])
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    TensorArgument,
    can_use_kernels,
    load_kernel,
)

BLOCK_ELEMENTS = (
    4096  # planes of 512 bytes; a block of 4-byte numbers is 16 KiB, half of an L1 cache
)
ELEMENT_BYTES = (1, 2, 4, 8)

_TEXT = r"""
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t element_bytes = ELEMENT_BYTES;
constexpr int64_t block_elements = BLOCK_ELEMENTS;
constexpr int64_t block_bytes = block_elements * element_bytes;
constexpr int64_t plane_bytes = block_elements / 8;

#if defined(__AVX2__)

// 32 numbers at a time: the top bits of 32 bytes are one instruction away, then all move up by one.
void split_bits(const uint8_t* bytes, uint8_t* planes) {
    for (int64_t n = 0; n < block_elements; n += 32) {
        __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + n));
        for (int bit = 7; bit >= 0; --bit) {
            const int32_t top = _mm256_movemask_epi8(value);
            std::memcpy(planes + bit * plane_bytes + n / 8, &top, 4);
            value = _mm256_add_epi8(value, value);
        }
    }
}

// The way back: every bit of a plane is spread over a byte, and the eight planes are merged.
void merge_bits(const uint8_t* planes, uint8_t* bytes) {
    const __m256i which_byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i which_bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    for (int64_t n = 0; n < block_elements; n += 32) {
        __m256i value = _mm256_setzero_si256();
        for (int bit = 0; bit < 8; ++bit) {
            int32_t packed;
            std::memcpy(&packed, planes + bit * plane_bytes + n / 8, 4);
            const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(packed), which_byte);
            const __m256i is_set =
                _mm256_cmpeq_epi8(_mm256_and_si256(spread, which_bit), which_bit);
            const __m256i weight = _mm256_set1_epi8(static_cast<char>(1 << bit));
            value = _mm256_or_si256(value, _mm256_and_si256(is_set, weight));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + n), value);
    }
}

#else

// Eight bytes as an 8 x 8 matrix of bits, turned over its diagonal by swapping ever larger squares.
uint64_t transpose(uint64_t bits) {
    uint64_t swapped = (bits ^ (bits >> 7)) & 0x00AA00AA00AA00AAull;
    bits ^= swapped ^ (swapped << 7);
    swapped = (bits ^ (bits >> 14)) & 0x0000CCCC0000CCCCull;
    bits ^= swapped ^ (swapped << 14);
    swapped = (bits ^ (bits >> 28)) & 0x00000000F0F0F0F0ull;
    return bits ^ swapped ^ (swapped << 28);
}

void split_bits(const uint8_t* bytes, uint8_t* planes) {
    for (int64_t n = 0; n < plane_bytes; ++n) {
        uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits |= static_cast<uint64_t>(bytes[8 * n + i]) << (8 * i);
        bits = transpose(bits);
        for (int i = 0; i < 8; ++i) planes[i * plane_bytes + n] = static_cast<uint8_t>(bits >> (8 * i));
    }
}

void merge_bits(const uint8_t* planes, uint8_t* bytes) {
    for (int64_t n = 0; n < plane_bytes; ++n) {
        uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits |= static_cast<uint64_t>(planes[i * plane_bytes + n]) << (8 * i);
        bits = transpose(bits);
        for (int i = 0; i < 8; ++i) bytes[8 * n + i] = static_cast<uint8_t>(bits >> (8 * i));
    }
}

#endif

}  // namespace

void shuffle(const uint8_t* source, uint8_t* target, int64_t size_bytes) {
    alignas(32) uint8_t bytes[block_bytes];  // byte 0 of every element, then byte 1, ..
    int64_t start = 0;
    for (; start + block_bytes <= size_bytes; start += block_bytes) {
        for (int64_t byte = 0; byte < element_bytes; ++byte) {
            uint8_t* own = bytes + byte * block_elements;
            for (int64_t n = 0; n < block_elements; ++n) own[n] = source[start + n * element_bytes + byte];
            split_bits(own, target + start + byte * block_elements);
        }
    }
    std::memcpy(target + start, source + start, size_bytes - start);
}

void unshuffle(const uint8_t* source, uint8_t* target, int64_t size_bytes) {
    alignas(32) uint8_t bytes[block_bytes];
    int64_t start = 0;
    for (; start + block_bytes <= size_bytes; start += block_bytes) {
        for (int64_t byte = 0; byte < element_bytes; ++byte) {
            merge_bits(source + start + byte * block_elements, bytes + byte * block_elements);
        }
        for (int64_t n = 0; n < block_elements; ++n) {
            for (int64_t byte = 0; byte < element_bytes; ++byte) {
                target[start + n * element_bytes + byte] = bytes[byte * block_elements + n];
            }
        }
    }
    std::memcpy(target + start, source + start, size_bytes - start);
}
"""


def emit_bitshuffle(element_bytes: int) -> CppSource:
    """The kernel for numbers of `element_bytes` bytes: `shuffle` and `unshuffle`."""
    arguments = (
        TensorArgument("source", torch.uint8, ("size_bytes",)),
        TensorArgument("target", torch.uint8, ("size_bytes",), is_written=True),
        DimensionArgument("size_bytes"),
    )
    text = _TEXT.replace("= ELEMENT_BYTES", f"= {element_bytes}")
    return CppSource(
        f"bitshuffle_{element_bytes}_bytes",
        text.replace("= BLOCK_ELEMENTS", f"= {BLOCK_ELEMENTS}"),
        (Function("shuffle", arguments), Function("unshuffle", arguments)),
    )


def shuffle(source: torch.Tensor, element_bytes: int, planes: torch.Tensor) -> None:
    """Write the bit planes of `source` to `planes`; both are flat `uint8` of one size."""
    kernel = _kernel(element_bytes) if can_use_kernels("bit-shuffle") else None
    if kernel is not None:
        kernel.shuffle(source, planes)
        return
    whole = _whole_bytes(source, element_bytes)
    elements = source[:whole].numpy().reshape(-1, BLOCK_ELEMENTS, element_bytes)
    bits = np.unpackbits(elements, axis=-1, bitorder="little").transpose(0, 2, 1)
    _store(planes, np.packbits(bits, axis=-1, bitorder="little"), source, whole)


def unshuffle(planes: torch.Tensor, element_bytes: int, target: torch.Tensor) -> None:
    """Write to `target` what `shuffle` made `planes` from."""
    kernel = _kernel(element_bytes) if can_use_kernels("bit-shuffle") else None
    if kernel is not None:
        kernel.unshuffle(planes, target)
        return
    whole = _whole_bytes(planes, element_bytes)
    packed = planes[:whole].numpy().reshape(-1, 8 * element_bytes, BLOCK_ELEMENTS // 8)
    bits = np.unpackbits(packed, axis=-1, bitorder="little").transpose(0, 2, 1)
    _store(target, np.packbits(bits, axis=-1, bitorder="little"), planes, whole)


@functools.cache
def _kernel(element_bytes: int) -> Kernel:
    return load_kernel(emit_bitshuffle(element_bytes))


def _whole_bytes(tensor: torch.Tensor, element_bytes: int) -> int:
    block_bytes = BLOCK_ELEMENTS * element_bytes
    return tensor.numel() // block_bytes * block_bytes


def _store(
    target: torch.Tensor, changed: npt.NDArray[np.uint8], source: torch.Tensor, whole: int
) -> None:
    target[:whole] = torch.from_numpy(changed.reshape(-1))
    target[whole:] = source[whole:]
