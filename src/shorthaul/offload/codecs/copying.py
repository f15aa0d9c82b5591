"""Copying an activation into a buffer, and knowing later that it came back as it went.

One kernel copies and computes the checksum in the same pass, on PyTorch's threads, with stores that
go past the caches: what was just saved is not needed again until the backward pass, and would only
push out what the next layer needs.
"""

from __future__ import annotations

import ctypes
import zlib

from shorthaul.jit import (
    CppSource,
    Function,
    KernelFunction,
    NumberArgument,
    ThreadsArgument,
    can_use_kernels,
    load_kernel,
)

_TEXT = r"""
#include "shorthaul/jit/include/parallel.h"

#include <cstring>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

// Each piece has a checksum of its own, and pieces are combined in order, so the result does not
// depend on the number of threads.
constexpr int64_t piece_bytes = 1 << 20;
constexpr int lanes = 64;  // 32-bit lanes: eight AVX2 registers, enough to hide a multiplication
constexpr uint32_t lane_multiplier = 0x9E3779B1u;  // odd, so that no change is ever lost
constexpr uint64_t fold_multiplier = 0x9E3779B97F4A7C15ull;

inline uint64_t fold(const uint32_t* hash, uint64_t total) {
  for (int lane = 0; lane < lanes; ++lane) total = (total + hash[lane]) * fold_multiplier;
  return total;
}

#if defined(__AVX2__)
inline void store_past_caches(uint8_t* target, const uint32_t* words) {
  for (int lane = 0; lane < lanes; lane += 8) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + 4 * lane),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + lane)));
  }
}
#else
inline void store_past_caches(uint8_t* target, const uint32_t* words) {
  std::memcpy(target, words, 4 * lanes);
}
#endif

// Checksum of one piece; copies it as well if there is a target.
uint64_t sum_piece(const uint8_t* source, uint8_t* target, int64_t bytes) {
  uint32_t hash[lanes];
  for (int lane = 0; lane < lanes; ++lane) hash[lane] = 0x811C9DC5u + lane;
  uint32_t words[lanes];
  int64_t at = 0;
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {  // whole blocks of 256 bytes
    std::memcpy(words, source + at, sizeof words);
    for (int lane = 0; lane < lanes; ++lane) hash[lane] = (hash[lane] ^ words[lane]) * lane_multiplier;
    if (target != nullptr) store_past_caches(target + at, words);
  }
  if (at < bytes) {  // the tail, filled up with zeros
    std::memset(words, 0, sizeof words);
    std::memcpy(words, source + at, static_cast<size_t>(bytes - at));
    for (int lane = 0; lane < lanes; ++lane) hash[lane] = (hash[lane] ^ words[lane]) * lane_multiplier;
    if (target != nullptr) std::memcpy(target + at, source + at, static_cast<size_t>(bytes - at));
  }
  return fold(hash, static_cast<uint64_t>(bytes));
}

int64_t sum_pieces(const uint8_t* source, uint8_t* target, int64_t bytes, int64_t threads) {
  const int64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  std::vector<uint64_t> sums(static_cast<size_t>(pieces));
  shorthaul::parallel_for(pieces, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t at = piece * piece_bytes;
      const int64_t length = bytes - at < piece_bytes ? bytes - at : piece_bytes;
      sums[piece] = sum_piece(source + at, target == nullptr ? nullptr : target + at, length);
    }
#if defined(__AVX2__)
    _mm_sfence();  // streamed stores are visible to other threads and devices only after this
#endif
  });
  uint64_t total = static_cast<uint64_t>(bytes);
  for (uint64_t sum : sums) total = (total ^ sum) * fold_multiplier;
  return static_cast<int64_t>(total);
}

}  // namespace

int64_t copy_and_sum(void* source, void* target, int64_t bytes, int64_t threads) {
  return sum_pieces(static_cast<uint8_t*>(source), static_cast<uint8_t*>(target), bytes, threads);
}

int64_t sum_only(void* source, int64_t bytes, int64_t threads) {
  return sum_pieces(static_cast<uint8_t*>(source), nullptr, bytes, threads);
}
"""


def emit_copying() -> CppSource:
    """The kernel: `copy_and_sum` into memory aligned to 32 bytes, and `sum_only`.

    By address: making tensors of a range and of a buffer, only to have them checked, took as long as
    handing the request to the disk.
    """
    source, target = NumberArgument("source", "address"), NumberArgument("target", "address")
    size, threads = NumberArgument("bytes", "int64"), ThreadsArgument()
    return CppSource(
        "offload_copy",
        _TEXT,
        (
            Function("copy_and_sum", (source, target, size, threads), returns="int64"),
            Function("sum_only", (source, size, threads), returns="int64"),
        ),
    )


class Copier:
    """Copies bytes and sums them: by the kernel, or by the C library and zlib where none can be built."""

    def __init__(self) -> None:
        self._copy_and_sum: KernelFunction | None = None
        self._sum_only: KernelFunction | None = None
        if can_use_kernels("offload: copying activations"):
            kernel = load_kernel(emit_copying())
            self._copy_and_sum, self._sum_only = kernel.copy_and_sum, kernel.sum_only

    def copy_and_sum(self, source: int, target: int, length_bytes: int) -> int:
        """Copy bytes from one address to another (aligned to 32 bytes); returns their checksum."""
        if self._copy_and_sum is not None:
            return int(self._copy_and_sum(source, target, length_bytes))
        ctypes.memmove(target, source, length_bytes)
        return self.sum_only(target, length_bytes)

    def sum_only(self, source: int, length_bytes: int) -> int:
        """The checksum that `copy_and_sum` gives for the same bytes."""
        if self._sum_only is not None:
            return int(self._sum_only(source, length_bytes))
        return zlib.crc32((ctypes.c_char * length_bytes).from_address(source))
