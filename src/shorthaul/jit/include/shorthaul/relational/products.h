// Products of gathered rows by typed weights, and the sums of outer products that are their gradients.
//
// Rows are reached by pointer, so gathering costs no copy; a tile has rows of one type, so its weight
// stays in the first-level cache. Blocks of 6 rows by 2 vectors fill 12 of 16 vector registers, the
// rest hold the weight's two vectors and the broadcast element.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "shorthaul/relational/real.h"

namespace shorthaul {

template <class real>
struct Lanes {
  static constexpr int count = 32 / sizeof(real);
  typedef real vector __attribute__((vector_size(32)));
  typedef real unaligned __attribute__((vector_size(32), aligned(sizeof(real))));
  static inline vector load(const real* p) { return *reinterpret_cast<const unaligned*>(p); }
  static inline void store(real* p, vector v) { *reinterpret_cast<unaligned*>(p) = v; }
};

// c[r][0 .. V lanes) = sum over k of a[r][k] * b[k * ldb + ..]
template <class real, int ROWS, int V>
inline void multiply_block(const real* const* a, int64_t depth, const real* b, int64_t ldb,
                           real* const* c) {
  using L = Lanes<real>;
  typename L::vector sums[ROWS][V] = {};
  for (int64_t k = 0; k < depth; ++k) {
    typename L::vector weights[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) weights[v] = L::load(b + k * ldb + v * L::count);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r) {
      const real element = a[r][k];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[r][v] += element * weights[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) L::store(c[r] + v * L::count, sums[r][v]);
}

// The inner product of two rows, in as many running sums as a vector has lanes.
template <class real>
inline real inner_product(const real* a, const real* b, int64_t depth) {
  using L = Lanes<real>;
  typename L::vector sum = {};
  int64_t k = 0;
  for (; k + L::count <= depth; k += L::count) sum += L::load(a + k) * L::load(b + k);
  real total = 0;
  for (int lane = 0; lane < L::count; ++lane) total += sum[lane];
  for (; k < depth; ++k) total += a[k] * b[k];
  return total;
}

// `columns` has the weight's columns after the last whole vector, one after the other.
template <class real, int ROWS>
[[gnu::noinline]] void multiply_rows(const real* const* a, int64_t depth, const real* b, int64_t width,
                          const real* columns, real* const* c) {
  using L = Lanes<real>;
  int64_t n = 0;
  real* at[ROWS];
  for (; n + 2 * L::count <= width; n += 2 * L::count) {
    for (int r = 0; r < ROWS; ++r) at[r] = c[r] + n;
    multiply_block<real, ROWS, 2>(a, depth, b + n, width, at);
  }
  for (; n + L::count <= width; n += L::count) {
    for (int r = 0; r < ROWS; ++r) at[r] = c[r] + n;
    multiply_block<real, ROWS, 1>(a, depth, b + n, width, at);
  }
  for (int64_t column = 0; n < width; ++n, ++column)
    for (int r = 0; r < ROWS; ++r) c[r][n] = inner_product(a[r], columns + column * depth, depth);
}

// One weight, as `multiply_rows` wants it: row-major, plus its last columns. Stored weights are used
// in place when they are so already.
template <class Number>
struct Panel {
  using real = typename Number::real;
  std::vector<real> turned, columns;
  const real* b = nullptr;

  void prepare(const typename Number::Stored* w, int64_t depth, int64_t width, bool transposed) {
    constexpr bool in_place = sizeof(typename Number::Stored) == sizeof(real);
    if (in_place && !transposed) {
      b = reinterpret_cast<const real*>(w);
    } else {
      turned.resize(depth * width);
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t n = 0; n < width; ++n)
          turned[k * width + n] = Number::load(transposed ? w[n * depth + k] : w[k * width + n]);
      b = turned.data();
    }
    const int64_t whole = width / Lanes<real>::count * Lanes<real>::count;
    columns.resize((width - whole) * depth);
    for (int64_t n = whole; n < width; ++n)
      for (int64_t k = 0; k < depth; ++k) columns[(n - whole) * depth + k] = b[k * width + n];
  }
};

// Rows [begin, end) of one tile. row(i) is the pointer to row i of x, out(i) that of the result;
// both are widened where they are stored in 16 bits.
template <class Number, class Row, class Out>
inline void multiply_tile(int64_t begin, int64_t end, int64_t depth, int64_t width,
                          const Panel<Number>& panel, std::vector<typename Number::real>& wide,
                          const Row& row, const Out& out) {
  using real = typename Number::real;
  constexpr bool in_place = sizeof(typename Number::Stored) == sizeof(real);
  constexpr int block = 6;
  if (!in_place) wide.resize(block * (depth + width));
  for (int64_t i = begin; i < end; i += block) {
    const int rows = static_cast<int>(end - i < block ? end - i : block);
    const real* a[block];
    real* c[block];
    for (int r = 0; r < rows; ++r) {
      if (in_place) {
        a[r] = reinterpret_cast<const real*>(row(i + r));
        c[r] = reinterpret_cast<real*>(out(i + r));
        if (i + r + 2 * block < end) {
          const char* ahead = reinterpret_cast<const char*>(row(i + r + 2 * block));
          for (int64_t byte = 0; byte < depth * int64_t{sizeof(real)}; byte += 64)
            __builtin_prefetch(ahead + byte);
        }
      } else {
        real* to = wide.data() + r * depth;
        const typename Number::Stored* from = row(i + r);
        for (int64_t k = 0; k < depth; ++k) to[k] = Number::load(from[k]);
        a[r] = to;
        c[r] = wide.data() + block * depth + r * width;
      }
    }
    const real* columns = panel.columns.data();
    switch (rows) {
      case 6: multiply_rows<real, 6>(a, depth, panel.b, width, columns, c); break;
      case 5: multiply_rows<real, 5>(a, depth, panel.b, width, columns, c); break;
      case 4: multiply_rows<real, 4>(a, depth, panel.b, width, columns, c); break;
      case 3: multiply_rows<real, 3>(a, depth, panel.b, width, columns, c); break;
      case 2: multiply_rows<real, 2>(a, depth, panel.b, width, columns, c); break;
      default: multiply_rows<real, 1>(a, depth, panel.b, width, columns, c); break;
    }
    if (!in_place)
      for (int r = 0; r < rows; ++r)
        for (int64_t n = 0; n < width; ++n) out(i + r)[n] = Number::store(c[r][n]);
  }
}

// sums[k][0 .. V lanes) += sum over rows of x[row][k] * y[row][..] for ROWS values of k
template <class real, int ROWS, int V>
inline void add_outer_block(const real* x, const real* y, int64_t rows, int64_t depth, int64_t width,
                            real* sums) {
  using L = Lanes<real>;
  typename L::vector kept[ROWS][V] = {};
  for (int64_t i = 0; i < rows; ++i, x += depth, y += width) {
    typename L::vector right[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) right[v] = L::load(y + v * L::count);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r) {
      const real element = x[r];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) kept[r][v] += element * right[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      real* const at = sums + r * width + v * L::count;
      L::store(at, L::load(at) + kept[r][v]);
    }
}

template <class real, int V>
inline void add_outer_columns(const real* x, const real* y, int64_t rows, int64_t depth, int64_t width,
                              real* sums) {
  int64_t k = 0;
  const auto add = [&](auto block) {
    constexpr int taken = decltype(block)::value;
    for (; k + taken <= depth; k += taken)
      add_outer_block<real, taken, V>(x + k, y, rows, depth, width, sums + k * width);
  };
  add(std::integral_constant<int, 6>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 1>());
}

// sums (depth x width) += X^T Y over `rows` rows, which lie one after the other
template <class real>
[[gnu::noinline]] void add_outer(const real* x, const real* y, int64_t rows, int64_t depth, int64_t width,
                                 real* sums) {
  using L = Lanes<real>;
  int64_t n = 0;
  for (; n + 2 * L::count <= width; n += 2 * L::count)
    add_outer_columns<real, 2>(x, y + n, rows, depth, width, sums + n);
  for (; n + L::count <= width; n += L::count)
    add_outer_columns<real, 1>(x, y + n, rows, depth, width, sums + n);
  for (; n < width; ++n)
    for (int64_t i = 0; i < rows; ++i) {
      const real right = y[i * width + n];
      for (int64_t k = 0; k < depth; ++k) sums[k * width + n] += x[i * depth + k] * right;
    }
}

// Rows [begin, end) of one tile, added up from zero into `sums` (depth x width). Rows are copied block by
// block: reaching them where they lie would wait for each anew, and a copy waits for many at a time.
template <class Number, class Left, class Right>
inline void outer_tile(int64_t begin, int64_t end, int64_t depth, int64_t width,
                       std::vector<typename Number::real>& copied, const Left& left,
                       const Right& right, typename Number::real* sums) {
  using real = typename Number::real;
  constexpr int block = 64;  // rows of both sides and what they add to stay in the first-level cache
  std::memset(sums, 0, sizeof(real) * depth * width);
  copied.resize(block * (depth + width));
  // A thin right side would leave most lanes empty: the other way round it is the left one.
  const bool turned = width < Lanes<real>::count && depth >= Lanes<real>::count;
  std::vector<real> transposed(turned ? depth * width : 0);
  real *const x = copied.data(), *const y = x + block * depth;
  for (int64_t i = begin; i < end; i += block) {
    const int rows = static_cast<int>(end - i < block ? end - i : block);
    for (int r = 0; r < rows; ++r) {
      const typename Number::Stored* const from_left = left(i + r);
      for (int64_t k = 0; k < depth; ++k) x[r * depth + k] = Number::load(from_left[k]);
      const typename Number::Stored* const from_right = right(i + r);
      for (int64_t n = 0; n < width; ++n) y[r * width + n] = Number::load(from_right[n]);
    }
    if (turned)
      add_outer<real>(y, x, rows, width, depth, transposed.data());
    else
      add_outer<real>(x, y, rows, depth, width, sums);
  }
  for (int64_t n = 0; turned && n < width; ++n)
    for (int64_t k = 0; k < depth; ++k) sums[k * width + n] = transposed[n * depth + k];
}

}  // namespace shorthaul
