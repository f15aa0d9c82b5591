// Products of gathered rows by typed weights, and the sums of outer products that are their gradients.
//
// Rows are reached by pointer, so gathering costs no copy; a tile has rows of one type, so its weight
// stays in the first-level cache. Blocks of 6 rows by 2 vectors fill 12 of 16 vector registers, the
// rest hold the weight's two vectors and the broadcast element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "shorthaul/relational/backends/cpp/real.h"

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

template <class real>
inline void multiply_up_to_six(int rows, const real* const* a, int64_t depth, const real* b, int64_t width,
                               const real* columns, real* const* c) {
  switch (rows) {
    case 6: return multiply_rows<real, 6>(a, depth, b, width, columns, c);
    case 5: return multiply_rows<real, 5>(a, depth, b, width, columns, c);
    case 4: return multiply_rows<real, 4>(a, depth, b, width, columns, c);
    case 3: return multiply_rows<real, 3>(a, depth, b, width, columns, c);
    case 2: return multiply_rows<real, 2>(a, depth, b, width, columns, c);
    default: return multiply_rows<real, 1>(a, depth, b, width, columns, c);
  }
}

// Rows [begin, end) of one tile by `heads` weights, each for `inner` vectors of a row. row(i) is the pointer
// to the first of these in row i of x, out(i) that of the result; both are widened where they are stored in
// 16 bits. All of a row is taken before the next: parts of rows, one head after the other, would be as many
// cache lines that nothing foresees.
template <class Number, class Row, class Out>
inline void multiply_tile(int64_t begin, int64_t end, int64_t heads, int64_t inner, int64_t depth,
                          int64_t width, const Panel<Number>* panels,
                          std::vector<typename Number::real>& wide, const Row& row, const Out& out) {
  using real = typename Number::real;
  constexpr bool in_place = sizeof(typename Number::Stored) == sizeof(real);
  constexpr int block = 6;
  const int64_t vectors = heads * inner;
  if (!in_place) wide.resize(block * vectors * (depth + width));
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
          for (int64_t byte = 0; byte < vectors * depth * int64_t{sizeof(real)}; byte += 64)
            __builtin_prefetch(ahead + byte);
        }
      } else {
        real* to = wide.data() + r * vectors * depth;
        const typename Number::Stored* from = row(i + r);
        for (int64_t k = 0; k < vectors * depth; ++k) to[k] = Number::load(from[k]);
        a[r] = to;
        c[r] = wide.data() + vectors * (block * depth + r * width);
      }
    }
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t j = 0; j < inner; ++j) {
        const Panel<Number>& panel = panels[head];
        multiply_up_to_six<real>(rows, a, depth, panel.b, width, panel.columns.data(), c);
        for (int r = 0; r < rows; ++r) {
          a[r] += depth;
          c[r] += width;
        }
      }
    if (!in_place)
      for (int r = 0; r < rows; ++r)
        for (int64_t n = 0; n < vectors * width; ++n)
          out(i + r)[n] = Number::store(wide[vectors * (block * depth + r * width) + n]);
  }
}

// sums[k][0 .. V lanes) += sum over rows of x[row][k] * y[row][..] for ROWS values of k
template <class real, int ROWS, int V>
inline void add_outer_block(const real* x, int64_t x_stride, const real* y, int64_t y_stride, int64_t rows,
                            real* sums, int64_t width) {
  using L = Lanes<real>;
  typename L::vector kept[ROWS][V] = {};
  for (int64_t i = 0; i < rows; ++i, x += x_stride, y += y_stride) {
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
inline void add_outer_columns(const real* x, int64_t x_stride, const real* y, int64_t y_stride,
                              int64_t rows, int64_t depth, int64_t width, real* sums) {
  int64_t k = 0;
  const auto add = [&](auto block) {
    constexpr int taken = decltype(block)::value;
    for (; k + taken <= depth; k += taken)
      add_outer_block<real, taken, V>(x + k, x_stride, y, y_stride, rows, sums + k * width, width);
  };
  add(std::integral_constant<int, 6>());
  add(std::integral_constant<int, 4>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 1>());
}

// sums (depth x width) += X^T Y over `rows` rows. The strides are numbers of their own, not fields: GCC makes
// constants of them where all of a layer's are the same.
template <class real>
[[gnu::noinline]] void add_outer(const real* x, int64_t x_stride, const real* y, int64_t y_stride,
                                 int64_t rows, int64_t depth, int64_t width, real* sums) {
  using L = Lanes<real>;
  int64_t n = 0;
  for (; n + 2 * L::count <= width; n += 2 * L::count)
    add_outer_columns<real, 2>(x, x_stride, y + n, y_stride, rows, depth, width, sums + n);
  for (; n + L::count <= width; n += L::count)
    add_outer_columns<real, 1>(x, x_stride, y + n, y_stride, rows, depth, width, sums + n);
  for (; n < width; ++n)
    for (int64_t i = 0; i < rows; ++i) {
      const real right = y[i * y_stride + n];
      for (int64_t k = 0; k < depth; ++k) sums[k * width + n] += x[i * x_stride + k] * right;
    }
}

// Rows [begin, end) of one tile, added up from zero into `sums` (heads x depth x width); left(i) and right(i)
// point to rows of `inner` vectors for each head. Rows are copied block by block: reaching them where they
// lie would wait for each anew, and a copy waits for many at a time.
template <class Number, class Left, class Right>
inline void outer_tile(int64_t begin, int64_t end, int64_t heads, int64_t inner, int64_t depth,
                       int64_t width, std::vector<typename Number::real>& copied, const Left& left,
                       const Right& right, typename Number::real* sums) {
  using real = typename Number::real;
  constexpr int64_t cache_bytes = 1 << 15, most_rows = 64, fewest_rows = 16;
  const int64_t x_width = heads * inner * depth, y_width = heads * inner * width;
  const int64_t fitting = cache_bytes / std::max<int64_t>(1, (x_width + y_width) * int64_t{sizeof(real)});
  const int64_t block = std::min(most_rows, std::max(fewest_rows, fitting));
  std::memset(sums, 0, sizeof(real) * heads * depth * width);
  copied.resize(block * (x_width + y_width));
  // A thin right side would leave most lanes empty: the other way round it is the left one.
  const bool turned = width < Lanes<real>::count && depth >= Lanes<real>::count;
  std::vector<real> transposed(turned ? heads * depth * width : 0);
  real *const x = copied.data(), *const y = x + block * x_width;
  for (int64_t i = begin; i < end; i += block) {
    const int64_t rows = std::min(block, end - i);
    for (int64_t r = 0; r < rows; ++r) {
      const typename Number::Stored* const from_left = left(i + r);
      for (int64_t k = 0; k < x_width; ++k) x[r * x_width + k] = Number::load(from_left[k]);
      const typename Number::Stored* const from_right = right(i + r);
      for (int64_t n = 0; n < y_width; ++n) y[r * y_width + n] = Number::load(from_right[n]);
    }
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t j = 0; j < inner; ++j) {
        const real* const of_x = x + (head * inner + j) * depth;
        const real* const of_y = y + (head * inner + j) * width;
        const int64_t to = head * depth * width;
        if (turned)
          add_outer<real>(of_y, y_width, of_x, x_width, rows, width, depth, transposed.data() + to);
        else
          add_outer<real>(of_x, x_width, of_y, y_width, rows, depth, width, sums + to);
      }
  }
  for (int64_t head = 0; turned && head < heads; ++head)
    for (int64_t n = 0; n < width; ++n)
      for (int64_t k = 0; k < depth; ++k)
        sums[(head * depth + k) * width + n] = transposed[(head * width + n) * depth + k];
}

}  // namespace shorthaul
