// What negatives are drawn from: true edges, and the nodes that may take the place of their ends.
//
// Negative n belongs to positive n / count. Attempt a of it has a stream of random numbers of its own,
// so any number of threads draws the same, and so does a reader that looks edges up attempt by attempt.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shorthaul/graphs/sampling/random.h"

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
};

}  // namespace shorthaul
