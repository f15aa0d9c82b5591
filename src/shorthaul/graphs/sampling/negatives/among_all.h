// The pair that chance did not find: one of all that are allowed, each as likely as its weight.
//
// How much may go with a target is the sum over sources less those that are taken, and those are few.
// It is added up between them and never subtracted, so that a huge weight that is taken does not
// drown a tiny one that is free. One answer costs as much as there are nodes and edges of a relation,
// and negatives that follow each other with the same pools share that.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "shorthaul/graphs/sampling/negatives/positives.h"

namespace shorthaul {

// Wide enough for a product of any two weights.
using Mass = long double;
constexpr int64_t mass_block = 64;

// One end of a negative: the entries of a pool, or the only node that there is.
template <class Id>
struct End {
  const Pool<Id>* pool;  // null where the end is kept
  Id kept;
  int64_t first, last;

  Id node(int64_t at) const { return pool == nullptr ? kept : pool->node(at); }
  double weight(int64_t at) const { return pool == nullptr ? 1.0 : pool->weight(at); }
};

// Sums of weights over any range of entries: of blocks, of pairs of blocks, and so on (node i of the
// tree covers nodes 2 i and 2 i + 1).
template <class Id>
class RangeSums {
 public:
  void fill(const End<Id>& end) {
    end_ = end;
    blocks_ = (end.last - end.first + mass_block - 1) / mass_block;
    tree_.assign(2 * blocks_, 0.0);
    for (int64_t at = end.first; at < end.last; ++at) {
      tree_[blocks_ + (at - end.first) / mass_block] += end.weight(at);
    }
    for (int64_t node = blocks_ - 1; node > 0; --node) tree_[node] = tree_[2 * node] + tree_[2 * node + 1];
  }

  Mass between(int64_t first, int64_t last) const {
    Mass sum = 0.0;
    const int64_t first_block = (first - end_.first + mass_block - 1) / mass_block;
    const int64_t last_block = (last - end_.first) / mass_block;
    if (first_block >= last_block) return add_each(first, last);
    sum += add_each(first, end_.first + first_block * mass_block);
    int64_t left = blocks_ + first_block, right = blocks_ + last_block;
    for (; left < right; left /= 2, right /= 2) {
      if (left & 1) sum += tree_[left++];
      if (right & 1) sum += tree_[--right];
    }
    return sum + add_each(end_.first + last_block * mass_block, last);
  }

 private:
  Mass add_each(int64_t first, int64_t last) const {
    Mass sum = 0.0;
    for (int64_t at = first; at < last; ++at) sum += end_.weight(at);
    return sum;
  }

  End<Id> end_{};
  int64_t blocks_ = 0;
  std::vector<Mass> tree_;
};

// Belongs to one thread.
template <class Id>
class AmongAll {
 public:
  AmongAll(const Positives<Id>& positives, const TrueEdges<Id>& edges)
      : positives_(positives), edges_(edges) {}

  // False where there is no pair at all.
  bool choose(int64_t n, int64_t attempt, Id& source, Id& target) {
    prepare(n);
    RandomStream random(positives_.attempt_key(attempt), n);
    Mass total = 0.0, sum = 0.0;
    for (const Mass each : masses_) total += each;
    if (!(total > 0)) return false;
    const Mass part = random.fraction() * total;
    const int64_t block = find(0, static_cast<int64_t>(masses_.size()), sum, part,
                               [&](int64_t at) { return masses_[at]; });
    const int64_t begin = targets_.first + block * mass_block;
    target = targets_.node(find(begin, std::min(begin + mass_block, targets_.last), sum, part,
                                [&](int64_t at) { return mass_of(at); }));
    source = draw_source(random, target);
    return true;
  }

 private:
  using Key = std::array<int64_t, 10>;

  // Everything that depends on more than n's own random numbers, unless the last n had the same.
  void prepare(int64_t n) {
    const auto& all = positives_;
    const int64_t p = n / all.count;
    const bool of_source = all.takes_source(n), of_target = all.takes_target(n);
    const auto make = [&](bool is_taken, const Pool<Id>& pool, Id kept) {
      if (!is_taken) return End<Id>{nullptr, kept, 0, 1};
      return End<Id>{&pool, kept, pool.begins[p], pool.end(p, all.moments, all.allows_equal != 0)};
    };
    const Id source = all.sources[p], target = all.targets[p], relation = all.relations[p];
    // The positive itself, unless it is among the edges.
    const bool is_extra = all.avoids != 0 &&
                          (edges_.pointers == nullptr || !edges_.has(source, target, relation));
    sources_ = make(of_source, all.source_pool, source);
    targets_ = make(of_target, all.target_pool, target);
    const Key key{relation,
                  of_source ? -1 : int64_t{source},
                  of_target ? -1 : int64_t{target},
                  is_extra ? int64_t{source} : -1,
                  is_extra ? int64_t{target} : -1,
                  sources_.first,
                  sources_.last,
                  targets_.first,
                  targets_.last,
                  1};
    if (key == key_) return;
    key_ = key;
    relation_ = relation;
    extra_source_ = is_extra ? source : Id{-1};
    extra_target_ = is_extra ? target : Id{-1};
    sums_.fill(sources_);
    order_sources();
    masses_.assign((std::max<int64_t>(0, targets_.last - targets_.first) + mass_block - 1) / mass_block, 0.0);
    for (int64_t at = targets_.first; at < targets_.last; ++at) {
      masses_[(at - targets_.first) / mass_block] += mass_of(at);
    }
  }

  // Sources by number, where their entries are in another order.
  void order_sources() {
    by_node_.clear();
    if (sources_.pool == nullptr || sources_.pool->times == nullptr) return;
    for (int64_t at = sources_.first; at < sources_.last; ++at) by_node_.push_back(at);
    std::sort(by_node_.begin(), by_node_.end(),
              [&](int64_t one, int64_t other) { return sources_.node(one) < sources_.node(other); });
  }

  // The entry of a source, or -1.
  int64_t find_entry(Id source) const {
    const int64_t count = sources_.last - sources_.first;
    const auto entry = [&](int64_t rank) { return by_node_.empty() ? sources_.first + rank : by_node_[rank]; };
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (sources_.node(entry(middle)) < source) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < count && sources_.node(entry(low)) == source ? entry(low) : -1;
  }

  // Entries of sources that may not go with a target, ascending.
  void list_taken(Id target) {
    taken_.clear();
    const auto take = [&](Id source) {
      const int64_t at = find_entry(source);
      if (at >= 0) taken_.push_back(at);
    };
    if (edges_.pointers != nullptr) {
      const Id* first = edges_.relations + edges_.pointers[target];
      const Id* last = edges_.relations + edges_.pointers[target + 1];
      const auto run = std::equal_range(first, last, relation_);
      const Id* row = edges_.sources + (run.first - edges_.relations);
      const Id* row_end = edges_.sources + (run.second - edges_.relations);
      for (const Id* each = row; each < row_end; ++each) {
        if (each == row || each[0] != each[-1]) take(*each);
      }
    }
    if (positives_.allows_loops == 0) take(target);
    if (target == extra_target_) take(extra_source_);
    std::sort(taken_.begin(), taken_.end());
    taken_.erase(std::unique(taken_.begin(), taken_.end()), taken_.end());
  }

  // Calls body(first, last) for each stretch of sources that may go with a target.
  template <class Body>
  void for_free(Id target, const Body& body) {
    list_taken(target);
    int64_t first = sources_.first;
    for (const int64_t at : taken_) {
      if (first < at) body(first, at);
      first = at + 1;
    }
    if (first < sources_.last) body(first, sources_.last);
  }

  Mass mass_of(int64_t target_at) {
    const Mass weight = targets_.weight(target_at);
    if (!(weight > 0)) return 0.0;
    Mass sum = 0.0;
    for_free(targets_.node(target_at),
             [&](int64_t first, int64_t last) { sum += sums_.between(first, last); });
    return weight * sum;
  }

  // By a fraction of its own: the one that chose the target says little of what goes with it.
  Id draw_source(RandomStream& random, Id target) {
    free_.clear();
    Mass total = 0.0, sum = 0.0;
    for_free(target, [&](int64_t first, int64_t last) {
      free_.push_back({first, last});
      total += sums_.between(first, last);
    });
    const Mass part = random.fraction() * total;
    const int64_t which = find(0, static_cast<int64_t>(free_.size()), sum, part, [&](int64_t at) {
      return sums_.between(free_[at].first, free_[at].second);
    });
    return sources_.node(find(free_[which].first, free_[which].second, sum, part,
                              [&](int64_t at) { return Mass{sources_.weight(at)}; }));
  }

  // Where the masses of [first, last), added to `sum`, exceed `part`; `sum` is what comes before.
  template <class MassOf>
  static int64_t find(int64_t first, int64_t last, Mass& sum, Mass part, const MassOf& mass) {
    int64_t found = first;
    for (int64_t at = first; at < last; ++at) {
      const Mass each = mass(at);
      if (!(each > 0)) continue;
      found = at;
      if (sum + each > part) break;
      sum += each;
    }
    return found;
  }

  const Positives<Id>& positives_;
  const TrueEdges<Id>& edges_;
  Key key_{};
  End<Id> sources_{}, targets_{};
  Id relation_ = 0, extra_source_ = -1, extra_target_ = -1;
  RangeSums<Id> sums_;
  std::vector<int64_t> by_node_, taken_;
  std::vector<Mass> masses_;
  std::vector<std::pair<int64_t, int64_t>> free_;
};

}  // namespace shorthaul
