// Pairs of nodes that no edge joins, drawn in place of true ones.
#pragma once

#include <atomic>
#include <cstdint>

#include "shorthaul/graphs/sampling/negatives/among_all.h"
#include "shorthaul/graphs/sampling/negatives/positives.h"
#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

// Draws the negatives numbered in `asked`; returns the first that there is none for, or -1.
template <class Id>
int64_t draw_negatives(const Positives<Id>& positives, const TrueEdges<Id>& edges, const int64_t* asked,
                       int64_t asked_count, int64_t first_attempt, int64_t attempts, Id* out_sources,
                       Id* out_targets, int64_t threads) {
  std::atomic<int64_t> failed{asked_count};
  parallel_for(asked_count, 64, threads, [&](int64_t begin, int64_t end) {
    AmongAll<Id> all(positives, edges);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t n = asked[at], p = n / positives.count;
      Id source = 0, target = 0;
      bool is_found = false;
      for (int64_t attempt = first_attempt; attempt < attempts && !is_found; ++attempt) {
        if (!positives.propose(n, attempt, source, target)) break;
        is_found = positives.allows(edges, p, source, target);
      }
      if (!is_found) is_found = all.choose(n, attempts, source, target);
      if (!is_found) {
        int64_t known = failed.load();
        while (at < known && !failed.compare_exchange_weak(known, at)) {
        }
      }
      out_sources[at] = source;
      out_targets[at] = target;
    }
  });
  return failed == asked_count ? -1 : asked[failed];
}

}  // namespace shorthaul
