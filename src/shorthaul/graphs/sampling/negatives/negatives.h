// Pairs of nodes that no edge joins, drawn in place of true ones.
//
// Negative n belongs to positive n / count. Attempt a of it has a stream of random numbers of its own,
// so any number of threads draws the same, and so does a reader that looks edges up attempt by attempt.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "shorthaul/graphs/sampling/random.h"
#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

// Where one end is drawn from: positive p takes entries begins[p] to ends[p], less those that came to
// be after its moment.
template <class Id>
struct Pool {
  const Id* nodes;           // null where entry n is node n
  const int64_t* times;      // ascending in each range; null where all have always been there
  const double* weights;     // null where all weigh the same
  const double* cumulative;  // weights added up, anew in each range, of any scale
  const int64_t* begins;
  const int64_t* ends;

  Id node(int64_t at) const { return nodes == nullptr ? static_cast<Id>(at) : nodes[at]; }

  int64_t end(int64_t positive, const int64_t* moments, bool allows_equal) const {
    const int64_t begin = begins[positive], end = ends[positive];
    if (times == nullptr) return end;
    const int64_t moment = moments[positive];
    const int64_t* found = allows_equal ? std::upper_bound(times + begin, times + end, moment)
                                        : std::lower_bound(times + begin, times + end, moment);
    return found - times;
  }
  double weight(int64_t at) const { return weights == nullptr ? 1.0 : weights[at]; }
  // The entry, or -1 where nothing can be drawn.
  int64_t draw(RandomStream& random, int64_t begin, int64_t end) const {
    if (begin >= end) return -1;
    if (cumulative == nullptr) return begin + random.below(end - begin);
    const double total = cumulative[end - 1];
    if (!(total > 0)) return -1;
    const double part = random.fraction() * total;
    int64_t at = std::upper_bound(cumulative + begin, cumulative + end, part) - cumulative;
    while (at == end || !(weight(at) > 0)) --at;
    return at;
  }
};

// The edges that no negative may be: those into each node by relation, then by source.
template <class Id>
struct TrueEdges {
  const Id* pointers;  // null where negatives may be anything
  const Id* relations;
  const Id* sources;

  bool has(Id source, Id target, Id relation) const {
    const Id* first = relations + pointers[target];
    const Id* last = relations + pointers[target + 1];
    const auto run = std::equal_range(first, last, relation);
    return std::binary_search(sources + (run.first - relations), sources + (run.second - relations),
                              source);
  }
};

enum Replaced : int64_t { replaced_target = 0, replaced_source = 1, replaced_either = 2, replaced_both = 3 };

template <class Id>
struct Positives {
  const Id* sources;
  const Id* targets;
  const Id* relations;
  const int64_t* moments;
  Pool<Id> source_pool, target_pool;
  int64_t replaced, allows_loops, allows_equal, avoids, count;
  uint64_t key;

  uint64_t attempt_key(int64_t attempt) const {
    return mix(key + golden_ratio * static_cast<uint64_t>(attempt + 1));
  }
  // Which ends of negative n are new.
  bool takes_source(int64_t n) const {
    if (replaced != replaced_either) return replaced != replaced_target;
    return RandomStream(mix(key), n).below(2) == 1;
  }
  bool takes_target(int64_t n) const {
    return replaced == replaced_both || !takes_source(n);
  }

  // One attempt; false where a pool is empty.
  bool propose(int64_t n, int64_t attempt, Id& source, Id& target) const {
    const int64_t p = n / count;
    RandomStream random(attempt_key(attempt), n);
    source = sources[p];
    target = targets[p];
    if (takes_source(n)) {
      const int64_t at = source_pool.draw(random, source_pool.begins[p],
                                          source_pool.end(p, moments, allows_equal != 0));
      if (at < 0) return false;
      source = source_pool.node(at);
    }
    if (takes_target(n)) {
      const int64_t at = target_pool.draw(random, target_pool.begins[p],
                                          target_pool.end(p, moments, allows_equal != 0));
      if (at < 0) return false;
      target = target_pool.node(at);
    }
    return true;
  }

  // Whether the pair may be a negative of p, as far as that is known without looking at edges.
  bool allows(int64_t p, Id source, Id target) const {
    if (allows_loops == 0 && source == target) return false;
    return avoids == 0 || source != sources[p] || target != targets[p];
  }
  bool allows(const TrueEdges<Id>& edges, int64_t p, Id source, Id target) const {
    return allows(p, source, target) &&
           (edges.pointers == nullptr || !edges.has(source, target, relations[p]));
  }

  // Looks at every pair there is, for those that chance did not find: false where there is none.
  bool choose_among_all(const TrueEdges<Id>& edges, int64_t n, int64_t attempt, Id& source,
                        Id& target) const {
    Product total = 0.0;
    for_all(edges, n, [&](Product weight, Id, Id) {
      total += weight;
      return false;
    });
    if (!(total > 0)) return false;
    const Product part = RandomStream(attempt_key(attempt), n).fraction() * total;
    Product sum = 0.0;
    for_all(edges, n, [&](Product weight, Id one, Id other) {
      if (!(weight > 0)) return false;
      sum += weight;
      source = one;
      target = other;
      return sum > part;
    });
    return true;
  }

 private:
  // Wide enough for a product of any two weights.
  using Product = long double;

  // Calls body(weight, source, target) for each allowed pair, until it returns true.
  template <class Body>
  void for_all(const TrueEdges<Id>& edges, int64_t n, const Body& body) const {
    const int64_t p = n / count;
    const bool of_source = takes_source(n), of_target = takes_target(n);
    const int64_t first_target = of_target ? target_pool.begins[p] : 0;
    const int64_t last_target = of_target ? target_pool.end(p, moments, allows_equal != 0) : 1;
    const int64_t first_source = of_source ? source_pool.begins[p] : 0;
    const int64_t last_source = of_source ? source_pool.end(p, moments, allows_equal != 0) : 1;
    for (int64_t t = first_target; t < last_target; ++t) {
      const Id target = of_target ? target_pool.node(t) : targets[p];
      const Product weight = of_target ? target_pool.weight(t) : 1.0;
      for (int64_t s = first_source; s < last_source; ++s) {
        const Id source = of_source ? source_pool.node(s) : sources[p];
        if (!allows(edges, p, source, target)) continue;
        const Product both = of_source ? weight * source_pool.weight(s) : weight;
        if (body(both, source, target)) return;
      }
    }
  }
};

// Draws the negatives numbered in `asked`; returns the first that there is none for, or -1.
template <class Id>
int64_t draw_negatives(const Positives<Id>& positives, const TrueEdges<Id>& edges, const int64_t* asked,
                       int64_t asked_count, int64_t first_attempt, int64_t attempts, Id* out_sources,
                       Id* out_targets, int64_t threads) {
  std::atomic<int64_t> failed{asked_count};
  parallel_for(asked_count, 64, threads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t n = asked[at], p = n / positives.count;
      Id source = 0, target = 0;
      bool is_found = false;
      for (int64_t attempt = first_attempt; attempt < attempts && !is_found; ++attempt) {
        if (!positives.propose(n, attempt, source, target)) break;
        is_found = positives.allows(edges, p, source, target);
      }
      if (!is_found) is_found = positives.choose_among_all(edges, n, attempts, source, target);
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
