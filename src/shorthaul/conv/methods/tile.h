// The register tile: `rows` windows times `vectors` vectors of output channels.
#pragma once

#include "shorthaul/conv/methods/vector.h"

namespace shorthaul {

// Where the windows of a tile are: anywhere, or `step` values apart. Many windows that are read by one
// vector of weights have more pointers than the processor has registers; at even steps they need one.
template <int rows, int64_t step>
struct TileWindows {
  const factor* first;

  SHORTHAUL_INLINE TileWindows(const factor* windows, const int64_t* offsets) : first(windows + offsets[0]) {}
  SHORTHAUL_INLINE const factor* at(int row, int k) const { return first + row * step + k * together; }
  SHORTHAUL_INLINE void move(int steps) { first += steps * together; }
};

template <int rows>
struct TileWindows<rows, 0> {
  const factor* each[rows];

  SHORTHAUL_INLINE TileWindows(const factor* windows, const int64_t* offsets) {
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) each[row] = windows + offsets[row];
  }
  SHORTHAUL_INLINE const factor* at(int row, int k) const { return each[row] + k * together; }
  SHORTHAUL_INLINE void move(int steps) {
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) each[row] += steps * together;
  }
};

// One step: sums[row] += window of row [k] * weights[k], with k a constant offset. `is_last`: of a run
// whose last step has fewer factors. The smaller side of the tile stays in registers while the other
// streams through.
template <bool is_last = false, int rows, int vectors, class Windows>
static SHORTHAUL_INLINE void multiply_step(vec (&sums)[rows][vectors], const Windows& windows,
                                           const real* weights, int k) {
  const auto window_of = [&](int row) {
    return is_last ? broadcast_last(windows.at(row, k)) : broadcast_factors(windows.at(row, k));
  };
  if constexpr (vectors <= rows) {
    vec held[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) held[v] = load(weights + (k * vectors + v) * lanes);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      const vec window = window_of(row);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) accumulate(sums[row][v], window, held[v]);
    }
  } else {
    vec held[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) held[row] = window_of(row);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const vec weight = load(weights + (k * vectors + v) * lanes);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) accumulate(sums[row][v], held[row], weight);
    }
  }
}

// `steps` steps with constant displacements, then one move of every pointer.
template <int steps, int rows, int vectors, class Windows>
static SHORTHAUL_INLINE void multiply_steps(vec (&sums)[rows][vectors], Windows& windows,
                                            const real*& weights) {
#pragma GCC unroll 4
  for (int k = 0; k < steps; ++k) multiply_step(sums, windows, weights, k);
  windows.move(steps);
  weights += steps * vectors * lanes;
}

// In place of a run's length: not known when the kernel is compiled, but some multiple of four steps.
constexpr int64_t even_runs = -1;

// `count` values, in order. Pointers move once per four steps, so that every load has a constant
// displacement; left to itself, g++ 12 spends an addition and a spill on most of them.
template <bool is_even = false, int rows, int vectors, class Windows>
static SHORTHAUL_INLINE void multiply(vec (&sums)[rows][vectors], Windows& windows,
                                      const real*& weights, int64_t count) {
  int64_t steps = count / together;
  if constexpr (is_even) {
    do multiply_steps<4>(sums, windows, weights);
    while ((steps -= 4) > 0);
    return;
  }
  for (; steps >= 4; steps -= 4) multiply_steps<4>(sums, windows, weights);
  if (steps & 2) multiply_steps<2>(sums, windows, weights);
  if (steps & 1) multiply_steps<1>(sums, windows, weights);
  if (count % together != 0) {
    multiply_step<true>(sums, windows, weights, 0);
    weights += vectors * lanes;
  }
}

// Values of a window that follow one another.
struct Run {
  int64_t offset;  // from the window's first value
  int64_t depth;   // steps of the window that come before, in the order of the weights
};

// The runs that a tile adds, in the order of the weights.
struct Runs {
  const Run* first;
  int64_t number, values;  // at least one value each
};

// A register tile that adds no runs: its sums are what they begin with.
template <class Out, int rows, int vectors>
static void begin_tile(const real* begin, int64_t begin_step, typename Out::value* const* to) {
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < vectors; ++v) Out::store(to[row] + v * lanes, load(begin + row * begin_step + v * lanes));
  }
}

// One register tile: loads its sums from `begin`, adds the runs of `rows` windows (at least one run), and stores the
// sums to `to`, as `Out` has them. One way in and one way out, in a function of its own: with any choice inside, g++ 12
// keeps the sums in memory around it, for 80 cycles a tile. `values` is the length of a run, and `step`
// the values from window to window, where they are known when the kernel is compiled, else 0; or `values` are
// `even_runs`. `has_gaps`: runs may be left out, so that each looks up its weights.
template <class Out, int rows, int vectors, int64_t values, int64_t step, bool has_gaps>
__attribute__((noinline)) static void sum_tile(const real* begin, int64_t begin_step,
                                               const factor* windows, const int64_t* window_offsets,
                                               const real* weights, const Runs& runs,
                                               typename Out::value* const* to) {
  vec sums[rows][vectors];
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[row][v] = load(begin + row * begin_step + v * lanes);
  }
  const Run* run = runs.first;
  const real* of_run = weights + run->depth * vectors * lanes;
  int64_t left = runs.number;
  do {
    TileWindows<rows, step> here(windows + run->offset, window_offsets);
    if (has_gaps) of_run = weights + run->depth * vectors * lanes;
    multiply<values == even_runs>(sums, here, of_run, values > 0 ? values : runs.values);
    ++run;
  } while (--left > 0);
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) Out::store(to[row] + v * lanes, sums[row][v]);
  }
}

}  // namespace shorthaul
