// What is known of candidates, row by row, in the order in which they are looked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

// Candidates of one run of relations (of one row, where `relations` is null) by time, equals in the
// order of the index; the weights of a row added up in that order.
template <class Id>
void arrange_row(const Id* relations, const int64_t* times, const double* weights, int64_t begin,
                 int64_t end, Id* order, int64_t* sorted_times, double* cumulative) {
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
    double sum = 0.0;
    for (int64_t at = begin; at < end; ++at) {
      sum += weights[times == nullptr ? at : begin + order[at]];
      cumulative[at] = sum;
    }
  }
}

}  // namespace shorthaul
