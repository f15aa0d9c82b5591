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

// `count` steps, in order. Pointers move once per `unrolled` steps, so that every load has a
// constant displacement; left to itself, g++ 12 spends an addition and a spill on most of them.
template <int rows, int vectors>
static SHORTHAUL_INLINE void multiply(vec (&sums)[rows][vectors], const real* (&windows)[rows],
                                      const real* weights, int64_t count) {
  constexpr int unrolled = 4;
  for (; count >= unrolled; count -= unrolled) {
#pragma GCC unroll 4
    for (int k = 0; k < unrolled; ++k) multiply_step<rows, vectors>(sums, windows, weights, k);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) windows[row] += unrolled;
    weights += unrolled * vectors * lanes;
  }
  for (; count > 0; --count) {
    multiply_step<rows, vectors>(sums, windows, weights, 0);
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) ++windows[row];
    weights += vectors * lanes;
  }
}

}  // namespace shorthaul
