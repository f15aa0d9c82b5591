// What is known of candidates, row by row, in the order in which they are looked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "shorthaul/graphs/sampling/candidates/weights.h"
#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

// Candidates of one run of relations (of one row, where `relations` is null) by time, equals in the
// order of the index; the weights in that order, and added up, anew in each run.
template <class Id>
void arrange_row(const Id* relations, const int64_t* times, const double* weights, int64_t begin,
                 int64_t end, Id* order, int64_t* sorted_times, double* sorted_weights, double* cumulative) {
  if (times != nullptr) {
    std::iota(order + begin, order + end, Id{0});
    for (int64_t first = begin; first < end;) {
      const int64_t stop = relations == nullptr ? end : run_end(relations, first, end);
      std::stable_sort(order + first, order + stop,
                       [&](Id one, Id other) { return times[begin + one] < times[begin + other]; });
      first = stop;
    }
    for (int64_t at = begin; at < end; ++at) sorted_times[at] = times[begin + order[at]];
  }
  if (weights != nullptr) {
    for (int64_t at = begin; at < end; ++at) {
      sorted_weights[at] = weights[times == nullptr ? at : begin + order[at]];
    }
    for (int64_t first = begin; first < end;) {
      const int64_t stop = relations == nullptr ? end : run_end(relations, first, end);
      add_up(stop - first, [&](int64_t n) { return sorted_weights[first + n]; }, cumulative + first);
      first = stop;
    }
  }
}

}  // namespace shorthaul
