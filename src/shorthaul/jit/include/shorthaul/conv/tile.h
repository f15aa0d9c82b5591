// The register tile: `rows` windows times `vectors` vectors of output channels.
#pragma once

#include "shorthaul/conv/vector.h"

namespace shorthaul {

// One step: sums[row] += windows[row][k] * weights[k], with k a constant offset.
// The smaller side of the tile stays in registers while the other streams through.
template <int rows, int vectors>
static SHORTHAUL_INLINE void multiply_step(vec (&sums)[rows][vectors],
                                           const real* const (&windows)[rows],
                                           const real* weights, int k) {
  if constexpr (vectors <= rows) {
    vec held[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) held[v] = load(weights + (k * vectors + v) * lanes);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      const vec window = broadcast(windows[row][k]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) accumulate(sums[row][v], window, held[v]);
    }
  } else {
    vec held[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) held[row] = broadcast(windows[row][k]);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const vec weight = load(weights + (k * vectors + v) * lanes);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) accumulate(sums[row][v], held[row], weight);
    }
  }
}

// `steps` steps with constant displacements, then one move of every pointer.
template <int steps, int rows, int vectors>
static SHORTHAUL_INLINE void multiply_steps(vec (&sums)[rows][vectors], const real* (&windows)[rows],
                                            const real*& weights) {
#pragma GCC unroll 4
  for (int k = 0; k < steps; ++k) multiply_step<rows, vectors>(sums, windows, weights, k);
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) windows[row] += steps;
  weights += steps * vectors * lanes;
}

// `count` steps, in order. Pointers move once per four steps, so that every load has a constant
// displacement; left to itself, g++ 12 spends an addition and a spill on most of them.
template <int rows, int vectors>
static SHORTHAUL_INLINE void multiply(vec (&sums)[rows][vectors], const real* (&windows)[rows],
                                      const real*& weights, int64_t count) {
  for (; count >= 4; count -= 4) multiply_steps<4, rows, vectors>(sums, windows, weights);
  if (count & 2) multiply_steps<2, rows, vectors>(sums, windows, weights);
  if (count & 1) multiply_steps<1, rows, vectors>(sums, windows, weights);
}

// The runs of values that windows are made of, in the order of the weights.
struct Runs {
  const int64_t* offsets;  // of each run, from the window's first value
  int64_t number, values;  // at least one run of at least one value
};

// One register tile: loads its sums from `begin`, adds the runs of `rows` windows, and stores the
// sums to `to`. One way in and one way out, in a function of its own: with any choice inside, g++ 12
// keeps the sums in memory around it, for 80 cycles a tile. `values` is the length of a run where it
// is known when the kernel is compiled, else 0.
template <int rows, int vectors, int64_t values>
__attribute__((noinline)) static void sum_tile(const real* begin, int64_t begin_step,
                                               const real* windows, const int64_t* window_offsets,
                                               const real* weights, const Runs& runs,
                                               real* const* to) {
  vec sums[rows][vectors];
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[row][v] = load(begin + row * begin_step + v * lanes);
  }
  const int64_t* run = runs.offsets;
  int64_t left = runs.number;
  do {
    const real* here[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) here[row] = windows + *run + window_offsets[row];
    multiply<rows, vectors>(sums, here, weights, values == 0 ? runs.values : values);
    ++run;
  } while (--left > 0);
#pragma GCC unroll 16
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(to[row] + v * lanes, sums[row][v]);
  }
}

}  // namespace shorthaul
