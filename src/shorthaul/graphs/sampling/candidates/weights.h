// Weights added up, so that one is found by a share of the sum.
#pragma once

#include <cmath>
#include <cstdint>

namespace shorthaul {

// Sums so far of weight_of(0) to weight_of(count - 1), all of them as much smaller as it takes for the last
// one to be a number: a sum is only compared with others of its run.
//
// Weights are not read back from differences of sums: behind one of 1e16 those of 1 would be 0 or 2.
template <class WeightOf>
inline void add_up(int64_t count, const WeightOf& weight_of, double* out) {
  for (const double scale : {1.0, 0x1p-64}) {
    double sum = 0.0;
    for (int64_t n = 0; n < count; ++n) out[n] = sum += weight_of(n) * scale;
    if (std::isfinite(sum)) return;
  }
}

}  // namespace shorthaul
