// Rows that are found by their numbers: ids checked, rows asked for ahead of time, bytes copied.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

constexpr int64_t line_bytes = 64;
// Rows are asked for so far ahead that memory has answered when their turn comes, and no further:
// what waits must fit the line buffers. The best of 0 to 32 rows, for rows of 64 B to 4 KiB.
constexpr int64_t ahead_bytes = 4096;
constexpr int64_t fewest_rows_ahead = 4, most_rows_ahead = 16;
// The rest of a longer row is fetched by the processor's own prefetcher once it is being read.
constexpr int64_t most_prefetched_bytes = 2048;
constexpr int64_t smallest_share_bytes = 1 << 17;  // less than this is not worth another thread

inline int64_t rows_ahead(int64_t row_bytes) {
  const int64_t rows = ahead_bytes / (row_bytes > 0 ? row_bytes : 1);
  return rows < fewest_rows_ahead ? fewest_rows_ahead : rows > most_rows_ahead ? most_rows_ahead : rows;
}

inline int64_t worthwhile_threads(int64_t bytes, int64_t threads) {
  const int64_t shares = bytes / smallest_share_bytes + 1;
  return shares < threads ? shares : threads;
}

inline void prefetch_row(const char* row, int64_t row_bytes) {
  const int64_t bytes = row_bytes < most_prefetched_bytes ? row_bytes : most_prefetched_bytes;
  for (int64_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(row + at, 0, 0);
  __builtin_prefetch(row + bytes - 1, 0, 0);
}

// A list of row numbers of either width. Negative ones count from the end.
template <class Id>
struct Ids {
  const Id* ids;
  int64_t rows;

  int64_t operator[](int64_t position) const {
    const int64_t id = ids[position];
    return id < 0 ? id + rows : id;
  }

  // The first position whose id is out of range, or -1. Without a branch in the loop, so that it is
  // vectorized: looking costs a few per cent of a gather.
  int64_t find_wrong(int64_t begin, int64_t end) const {
    for (int64_t block = begin; block < end; block += 4096) {
      const int64_t stop = block + 4096 < end ? block + 4096 : end;
      bool is_wrong = false;
      for (int64_t at = block; at < stop; ++at) is_wrong |= (ids[at] < -rows) | (ids[at] >= rows);
      if (!is_wrong) continue;
      for (int64_t at = block; at < stop; ++at) {
        if ((ids[at] < -rows) | (ids[at] >= rows)) return at;
      }
    }
    return -1;
  }
};

// Calls body(Ids) with the width that `id_bytes` names.
template <class Body>
inline auto with_ids(const void* ids, int64_t id_bytes, int64_t rows, const Body& body) {
  if (id_bytes == 4) return body(Ids<int32_t>{static_cast<const int32_t*>(ids), rows});
  return body(Ids<int64_t>{static_cast<const int64_t*>(ids), rows});
}

// One row, copied. `streams` goes past the caches, which will not be asked for the rows again
// before they are written over; it wants 32-byte alignment of target and length.
template <bool streams>
inline void copy_row(char* to, const char* from, int64_t bytes) {
#if defined(__AVX__)
  if constexpr (streams) {
    for (int64_t at = 0; at < bytes; at += 32) {
      const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), part);
    }
    return;
  }
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), part);
  }
  if (at < bytes) std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

inline void finish_row_streams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// Calls body(source row number, position) for each id, threads owning runs of positions, after
// every id has been looked at. Returns the first position whose id is out of range, or -1.
template <class Id, class Body>
inline int64_t for_each_row(Ids<Id> ids, int64_t count, const char* table, int64_t stride_bytes,
                            int64_t row_bytes, int64_t threads, const Body& body) {
  const int64_t wrong = ids.find_wrong(0, count);
  if (wrong >= 0) return wrong;
  const int64_t ahead = rows_ahead(row_bytes);
  parallel_for(count, 64, worthwhile_threads(count * row_bytes, threads), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      if (at + ahead < end) prefetch_row(table + ids[at + ahead] * stride_bytes, row_bytes);
      body(ids[at], at);
    }
    finish_row_streams();
  });
  return -1;
}

}  // namespace shorthaul
