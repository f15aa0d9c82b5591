// Sums, means, maxima and scalar products of rows that are found by their numbers.
//
// The generated text defines SHORTHAUL_REAL, and names in `Stored` how values lie in the table and
// in `Seen` how they are handed out. Each segment belongs to one thread and is summed in the order
// of its ids, so results do not depend on the number of threads.
#pragma once

#if defined(__AVX512F__)
#define SHORTHAUL_VECTOR_BYTES 64
#elif defined(__AVX__)
#define SHORTHAUL_VECTOR_BYTES 32
#else
#define SHORTHAUL_VECTOR_BYTES 16
#endif
#define SHORTHAUL_LANES (SHORTHAUL_VECTOR_BYTES / int(sizeof(SHORTHAUL_REAL)))

#include <algorithm>
#include <limits>

#include "shorthaul/conv/methods/vector.h"
#include "shorthaul/tensors/kernels/rows.h"

namespace shorthaul {

// Whole numbers of one byte; the scale of their row is a factor.
struct AsInt8 {
  using value = int8_t;
  typedef int8_t byte_lanes __attribute__((vector_size(lanes)));
  static SHORTHAUL_INLINE vec load(const value* from) {
#if defined(__AVX2__) && SHORTHAUL_VECTOR_BYTES == 32
    if constexpr (lanes == 8) {
      __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
      return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
#endif
    byte_lanes narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    return __builtin_convertvector(__builtin_convertvector(narrow, wholes), vec);
  }
};

// Rows in memory, each with a scale where there are scales.
template <class Stored>
struct Table {
  using value = typename Stored::value;
  const char* start;
  int64_t stride_bytes, width;
  const float* scales;

  const char* address(int64_t row) const { return start + row * stride_bytes; }
  const value* operator[](int64_t row) const { return reinterpret_cast<const value*>(address(row)); }
  real scale(int64_t row) const { return scales == nullptr ? real{1} : static_cast<real>(scales[row]); }
  int64_t row_bytes() const { return width * int64_t{sizeof(value)}; }
};

// Ids in segments: segment s is ids[pointers[s]] to ids[pointers[s + 1]].
template <class Id>
struct Segments {
  Ids<Id> ids;
  const int64_t* pointers;
  int64_t count;

  // Calls body(begin, end) with runs of segments that have about equally many ids.
  template <class Body>
  void for_each_run(int64_t row_bytes, int64_t threads, const Body& body) const {
    const int64_t entries = pointers[count];
    on_each_thread(worthwhile_threads(entries * row_bytes, threads), [&](int64_t thread, int64_t team) {
      const auto edge = [&](int64_t number) {
        if (number == 0) return int64_t{0};
        if (number == team) return count;
        return int64_t{std::lower_bound(pointers, pointers + count, entries * number / team) - pointers};
      };
      body(edge(thread), edge(thread + 1));
    });
  }
};

struct Sum {
  static SHORTHAUL_INLINE vec start() { return vec{}; }
  static SHORTHAUL_INLINE void add(vec& result, vec value) { result += value; }
};
struct Maximum {
  static SHORTHAUL_INLINE vec start() { return broadcast(-std::numeric_limits<real>::infinity()); }
  // As torch: a NaN wins and stays.
  static SHORTHAUL_INLINE void add(vec& result, vec value) {
    result = (value > result) | (value != value) ? value : result;
  }
};

// `vectors` vectors of one segment, from `column` on; the last may be a part of `rest` lanes.
template <class Stored, class Seen, class Op, bool has_factor, int vectors, bool is_part, class Id>
inline void reduce_columns(const Table<Stored>& table, const Segments<Id>& segments, const real* weights,
                           int64_t segment, int64_t column, int64_t rest, int64_t stop, bool is_mean,
                           typename Seen::value* out) {
  const int64_t first = segments.pointers[segment], last = segments.pointers[segment + 1];
  const int64_t ahead = rows_ahead(table.row_bytes());
  vec sums[vectors];
  for (int v = 0; v < vectors; ++v) sums[v] = last > first ? Op::start() : vec{};
  for (int64_t at = first; at < last; ++at) {
    // The first pass over a segment asks for the rows of the next ones too.
    if (column == 0 && at + ahead < stop) {
      prefetch_row(table.address(segments.ids[at + ahead]), table.row_bytes());
    }
    const int64_t id = segments.ids[at];
    const auto* row = table[id] + column;
    [[maybe_unused]] const real factor =
        has_factor ? table.scale(id) * (weights == nullptr ? real{1} : weights[at]) : real{1};
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) {
      vec value;
      if constexpr (is_part) value = load_part<Stored>(row, rest);
      else value = Stored::load(row + v * lanes);
      if constexpr (has_factor) value *= factor;
      Op::add(sums[v], value);
    }
  }
  const real divisor = is_mean && last > first ? static_cast<real>(last - first) : real{1};
  for (int v = 0; v < vectors; ++v) {
    const vec result = is_mean ? sums[v] / divisor : sums[v];
    if constexpr (is_part) store_part<Seen>(out + column, result, rest);
    else Seen::store(out + column + v * lanes, result);
  }
}

template <class Stored, class Seen, class Op, bool has_factor, class Id>
inline void reduce_segments(const Table<Stored>& table, const Segments<Id>& segments, const real* weights,
                            bool is_mean, typename Seen::value* out, int64_t threads) {
  segments.for_each_run(table.row_bytes(), threads, [&](int64_t begin, int64_t end) {
    const int64_t stop = segments.pointers[end];
    for (int64_t segment = begin; segment < end; ++segment) {
      auto* own = out + segment * table.width;
      int64_t column = 0;
      const auto run = [&](auto vectors_here, auto is_part_here, int64_t rest) {
        constexpr int vectors = vectors_here;
        reduce_columns<Stored, Seen, Op, has_factor, vectors, is_part_here>(
            table, segments, weights, segment, column, rest, stop, is_mean, own);
        column += vectors * lanes;
      };
      using Whole = std::false_type;
      // A plain sum needs no register but its sums': 128 floats in one pass over the segment.
      if constexpr (!has_factor && std::is_same_v<Op, Sum>) {
        while (column + 16 * lanes <= table.width) run(std::integral_constant<int, 16>{}, Whole{}, 0);
      }
      while (column + 8 * lanes <= table.width) run(std::integral_constant<int, 8>{}, Whole{}, 0);
      if (column + 4 * lanes <= table.width) run(std::integral_constant<int, 4>{}, Whole{}, 0);
      if (column + 2 * lanes <= table.width) run(std::integral_constant<int, 2>{}, Whole{}, 0);
      if (column + lanes <= table.width) run(std::integral_constant<int, 1>{}, Whole{}, 0);
      const int64_t rest = table.width - column;
      if (rest > 0) run(std::integral_constant<int, 1>{}, std::true_type{}, rest);
    }
  });
}

// out[e] = the scalar product of the row of ids[e] and the gradient of e's segment.
template <class Stored, class Seen, class Id>
inline void multiply_segments(const Table<Stored>& table, const Segments<Id>& segments,
                              const typename Seen::value* gradient, bool is_mean, real* out, int64_t threads) {
  const int64_t ahead = rows_ahead(table.row_bytes());
  segments.for_each_run(table.row_bytes(), threads, [&](int64_t begin, int64_t end) {
    const int64_t stop = segments.pointers[end];
    for (int64_t segment = begin; segment < end; ++segment) {
      const int64_t first = segments.pointers[segment], last = segments.pointers[segment + 1];
      const auto* own = gradient + segment * table.width;
      for (int64_t at = first; at < last; ++at) {
        if (at + ahead < stop) prefetch_row(table.address(segments.ids[at + ahead]), table.row_bytes());
        const int64_t id = segments.ids[at];
        const auto* row = table[id];
        vec sums[2] = {};
        int64_t column = 0;
        for (; column + 2 * lanes <= table.width; column += 2 * lanes) {
          sums[0] += Stored::load(row + column) * Seen::load(own + column);
          sums[1] += Stored::load(row + column + lanes) * Seen::load(own + column + lanes);
        }
        for (; column < table.width; column += lanes) {
          const int64_t rest = table.width - column;
          sums[0] += load_part<Stored>(row + column, rest) * load_part<Seen>(own + column, rest);
        }
        const vec both = sums[0] + sums[1];
        real total = 0;
        for (int lane = 0; lane < lanes; ++lane) total += both[lane];
        out[at] = total * table.scale(id) / (is_mean ? static_cast<real>(last - first) : real{1});
      }
    }
  });
}

// Rows as the user sees them, widened.
template <class Stored, class Seen>
inline void widen_row(const Table<Stored>& table, int64_t id, typename Seen::value* out) {
  const auto* row = table[id];
  const real scale = table.scale(id);
  int64_t column = 0;
  for (; column + lanes <= table.width; column += lanes) {
    Seen::store(out + column, Stored::load(row + column) * scale);
  }
  const int64_t rest = table.width - column;
  if (rest > 0) store_part<Seen>(out + column, load_part<Stored>(row + column, rest) * scale, rest);
}

}  // namespace shorthaul
