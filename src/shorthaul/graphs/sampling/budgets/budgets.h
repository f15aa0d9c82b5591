// Sampling by budgets (Hu et al., Heterogeneous Graph Transformer, 2020).
//
// A node that is taken gives to each of its neighbors one over how many it has by that relation: their
// budgets. A hop takes so many nodes of each type, none twice, in proportion to squared budgets: each has an
// arrival at random, the sooner the larger its budget, and the first ones are taken. At last, the edges
// among all nodes that were taken. Rows are given by the caller, from memory or from disk.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/graphs/sampling/random.h"
#include "shorthaul/graphs/sampling/relabel.h"
#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

// The neighbors of some nodes: those of the n-th are [begins[n], ends[n]) of the columns, where the index
// has them from positions[n] on.
template <class Id>
struct GivenRows {
  const int64_t *begins, *ends, *positions;
  const Id *sources, *relations;
  int64_t count;
};

template <class Id>
class Budgets {
 public:
  explicit Budgets(int64_t num_nodes) : table_(num_nodes) {}

  void start(const Id* seeds, int64_t count, Id* seed_rows) {
    table_.start();
    taken_.clear();
    make_room(count);
    for (int64_t n = 0; n < count; ++n) {
      const int64_t slot = meet(seeds[n]);
      if (row_[slot] < 0) take(slot);
      seed_rows[n] = row_[slot];
    }
  }

  // What the nodes of these rows, the last ones that were taken, give to their neighbors.
  void give(const GivenRows<Id>& rows, int64_t most_neighbors, uint64_t key) {
    int64_t found = 0;
    for (int64_t n = 0; n < rows.count; ++n)
      for_each_neighbor(rows, n, most_neighbors, key, [&](int64_t, int64_t) { ++found; });
    make_room(found);
    for (int64_t n = 0; n < rows.count; ++n) {
      for_each_neighbor(rows, n, most_neighbors, key, [&](int64_t at, int64_t neighbors) {
        const int64_t slot = meet(rows.sources[at]);
        if (row_[slot] < 0) budget_[slot] += 1.0 / static_cast<double>(neighbors);
      });
    }
  }

  // Takes up to wanted[t] nodes of each type, whose ids end before stops[t].
  void draw(const Id* stops, const int64_t* wanted, int64_t types, uint64_t key) {
    std::vector<std::vector<Arrival>> arrivals(types);
    for (int64_t slot = 0; slot < table_.count(); ++slot) {
      if (row_[slot] >= 0) continue;
      const int64_t type = std::upper_bound(stops, stops + types, met_[slot]) - stops;
      RandomStream random(key, static_cast<uint64_t>(met_[slot]));
      const double number = static_cast<double>((random.next() >> 11) + 1) * 0x1p-53;  // never zero
      arrivals[type].push_back({-std::log(number) / (budget_[slot] * budget_[slot]), slot});
    }
    for (int64_t type = 0; type < types; ++type) {
      auto& each = arrivals[type];
      const auto last = each.begin() + std::min<int64_t>(wanted[type], each.size());
      std::partial_sort(each.begin(), last, each.end());
      for (auto arrival = each.begin(); arrival != last; ++arrival) take(arrival->slot);
    }
  }

  // Counts the edges among the taken nodes, whose rows these are: offsets has one number more than rows.
  int64_t count_edges(const GivenRows<Id>& rows, int64_t most_neighbors, uint64_t key, int64_t* offsets,
                      int64_t threads) const {
    offsets[0] = 0;
    on_rows(rows, threads, [&](int64_t n) {
      int64_t edges = 0;
      for_each_neighbor(rows, n, most_neighbors, key,
                        [&](int64_t at, int64_t) { edges += find(rows.sources[at]) >= 0; });
      offsets[n + 1] = edges;
    });
    for (int64_t n = 0; n < rows.count; ++n) offsets[n + 1] += offsets[n];
    return offsets[rows.count];
  }

  void write_edges(const GivenRows<Id>& rows, int64_t most_neighbors, uint64_t key, const int64_t* offsets,
                   Id* sources, Id* positions, int64_t threads) const {
    on_rows(rows, threads, [&](int64_t n) {
      int64_t edge = offsets[n];
      for_each_neighbor(rows, n, most_neighbors, key, [&](int64_t at, int64_t) {
        const int64_t row = find(rows.sources[at]);
        if (row < 0) return;
        sources[edge] = static_cast<Id>(row);
        positions[edge++] = static_cast<Id>(rows.positions[n] + at - rows.begins[n]);
      });
    });
  }

  const std::vector<Id>& taken() const { return taken_; }

 private:
  struct Arrival {
    double time;
    int64_t slot;
    bool operator<(const Arrival& other) const {
      return time < other.time || (time == other.time && slot < other.slot);
    }
  };

  void make_room(int64_t more) {
    const int64_t most = table_.count() + more;
    if (static_cast<int64_t>(met_.size()) < most) {
      met_.resize(most);
      budget_.resize(most);
      row_.resize(most);
    }
    table_.reserve(most, met_.data());
  }

  int64_t meet(Id node) {
    const int64_t before = table_.count();
    const int64_t slot = table_.place(node, met_.data());
    if (slot == before) {
      budget_[slot] = 0;
      row_[slot] = -1;
    }
    return slot;
  }

  void take(int64_t slot) {
    row_[slot] = static_cast<Id>(taken_.size());
    taken_.push_back(met_[slot]);
  }

  // The row of a node among those taken, or -1.
  int64_t find(Id node) const {
    const int64_t slot = table_.find_position(node);
    return slot < 0 ? -1 : row_[slot];
  }

  // Calls body(place, how many of its relation) for each neighbor of the n-th row, or for `most` of each
  // relation, each set of that size as likely as any other.
  template <class Body>
  void for_each_neighbor(const GivenRows<Id>& rows, int64_t n, int64_t most, uint64_t key,
                         const Body& body) const {
    Marks marks;
    std::vector<int64_t> drawn;
    const Id node = taken_[taken_.size() - rows.count + n];
    RandomStream random(key, static_cast<uint64_t>(node));
    for (int64_t begin = rows.begins[n]; begin < rows.ends[n];) {
      const int64_t end = run_end(rows.relations, begin, rows.ends[n]), degree = end - begin;
      if (most < 0 || degree <= most) {
        for (int64_t at = begin; at < end; ++at) body(at, degree);
      } else {
        drawn.resize(most);
        shorthaul::draw(random, begin, degree, most, false, marks, drawn.data());
        for (const int64_t at : drawn) body(at, most);
      }
      begin = end;
    }
  }

  template <class Body>
  static void on_rows(const GivenRows<Id>& rows, int64_t threads, const Body& body) {
    parallel_for(rows.count, 64, threads, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) body(n);
    });
  }

  HashTable<Id> table_;  // of nodes that were met: a slot for each
  std::vector<Id> met_, row_, taken_;
  std::vector<double> budget_;
};

}  // namespace shorthaul
