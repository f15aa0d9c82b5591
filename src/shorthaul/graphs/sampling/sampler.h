// Neighbor sampling: hop by hop from the seeds outwards, into memory that is kept between samples.
//
// One hop: count what each target takes (threads), add up (one thread), draw positions and read the
// neighbors there (threads), relabel them (one thread: ids are given in the order of appearance).
// Where the graph lies on disk the caller reads what a hop needs: rows before drawing, neighbors after.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "shorthaul/jit/include/parallel.h"
#include "shorthaul/graphs/sampling/array.h"
#include "shorthaul/graphs/sampling/candidates/candidates.h"
#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/graphs/sampling/random.h"
#include "shorthaul/graphs/sampling/relabel.h"

namespace shorthaul {

// What is sampled from: the neighbors of node n are sources[pointers[n] .. pointers[n + 1]).
template <class Id>
struct Neighbors {
  const Id* pointers;
  const Id* sources;
  const Id* relations;
  Columns<Id> columns;
  int64_t num_nodes;

  Row<Id> row(int64_t, Id node) const {
    const int64_t begin = pointers[node];
    return {begin, pointers[node + 1], relations == nullptr ? nullptr : relations + begin, begin};
  }
  void prefetch_row(int64_t, Id node) const { __builtin_prefetch(pointers + node); }
  void prefetch_sources(Id node) const { __builtin_prefetch(sources + pointers[node]); }
  void read_sources(const Id* positions, int64_t first, int64_t stop, Id* out) const {
    for (int64_t edge = first; edge < stop; ++edge) out[edge] = sources[positions[edge]];
  }
};

// The rows of one hop's targets, read from disk: where each begins and ends in the index, and what is
// known of all of them one after the other. Their neighbors are read when it is known which.
template <class Id>
struct ReadRows {
  const Id* ends;             // begin and end, target by target
  const Id* relations;        // null where fan-outs are for all relations together
  const int64_t* row_starts;  // where a target's part of the columns begins
  Columns<Id> columns;
  static constexpr const Id* sources = nullptr;

  Row<Id> row(int64_t target, Id) const {
    const int64_t local = row_starts == nullptr ? 0 : row_starts[target];
    const Id* own = relations == nullptr ? nullptr : relations + local;
    return {ends[2 * target], ends[2 * target + 1], own, local};
  }
  void prefetch_row(int64_t, Id) const {}
  void prefetch_sources(Id) const {}
  void read_sources(const Id*, int64_t, int64_t, Id*) const {}
};

// The edges that one hop took, for targets in the order of the sample's list of nodes.
template <class Id>
struct Hop {
  int64_t first_target = 0, targets = 0, edges = 0;
  Array<Id> offsets;           // targets + 1
  Array<Id> sources;           // positions in the list of nodes
  Array<Id> positions;         // positions in the graph's index
};

template <class Id, template <class> class Table>
class Sampler {
 public:
  explicit Sampler(int64_t num_nodes) : table_(num_nodes), pairs_(INT64_MAX), num_nodes_(num_nodes) {}

  // Returns 0, or 1 + the position of a seed that is no node, or a negative number for overflow.
  int64_t sample(const Neighbors<Id>& graph, const Id* seeds, int64_t num_seeds,
                 Id* seed_rows, const int64_t* fan_outs, const int64_t* fan_widths, int64_t hops,
                 int64_t relations, const Rule<Id>& rule, bool resample, bool disjoint, uint64_t key,
                 int64_t threads) {
    for (int64_t n = 0; n < num_seeds; ++n) {
      if (seeds[n] < 0 || seeds[n] >= graph.num_nodes) return 1 + n;
    }
    start(seeds, num_seeds, seed_rows, hops, disjoint, threads);
    for (int64_t hop = 0; hop < hops; ++hop) {
      start_hop(hop, resample);
      const int64_t* fan = fan_outs + hop * relations;
      if (!draw_hop(graph, hop, fan, fan_widths[hop], rule, key, threads)) return -1;
      relabel_hop(hop);
    }
    return 0;
  }

  // The steps of `sample`, for those who read a graph in between: `start`, then for each hop
  // `start_hop`, `draw_hop` and `relabel_hop`. In `disjoint` samples every seed has a tree of its own.
  void start(const Id* seeds, int64_t num_seeds, Id* seed_rows, int64_t hops, bool disjoint,
             int64_t threads) {
    while (static_cast<int64_t>(hops_.size()) < hops) hops_.emplace_back();
    while (static_cast<int64_t>(scratch_.size()) < threads) scratch_.emplace_back();
    is_disjoint_ = disjoint;
    begin_ = count_ = 0;
    table_.start();
    pairs_.start();
    reserve(num_seeds);
    for (int64_t n = 0; n < num_seeds; ++n) seed_rows[n] = place(static_cast<Id>(n), seeds[n]);
    seeds_ = count_;
  }

  // Whose neighbors the hop draws: every node met so far, or those that the hop before it met.
  void start_hop(int64_t hop, bool resample) {
    Made& made = hops_[hop];
    made.first_target = resample ? 0 : begin_;
    begin_ = count_;
    made.targets = begin_ - made.first_target;
  }

  // False when the edges are more than an id can count.
  template <class Graph>
  bool draw_hop(const Graph& graph, int64_t hop, const int64_t* fan_outs, int64_t fan_width,
                const Rule<Id>& rule, uint64_t key, int64_t threads) {
    const Fan fan{fan_outs, fan_width, rule, mix(key + golden_ratio * static_cast<uint64_t>(hop + 1))};
    if (!count(graph, hops_[hop], fan, threads)) return false;
    draw_all(graph, hops_[hop], fan, threads);
    return true;
  }

  void relabel_hop(int64_t hop) {
    Made& made = hops_[hop];
    reserve(made.edges);
    Id* sources = made.sources.data();
    if (!is_disjoint_) {
      Id* nodes = nodes_.data();
      for (int64_t edge = 0; edge < made.edges; ++edge) {
        if (edge + 16 < made.edges) table_.prefetch(sources[edge + 16]);
        sources[edge] = table_.place(sources[edge], nodes);
      }
      count_ = table_.count();
      return;
    }
    const Id* offsets = made.offsets.data();
    for (int64_t n = 0; n < made.targets; ++n) {
      const Id tree = trees_.data()[made.first_target + n];
      for (int64_t edge = offsets[n]; edge < offsets[n + 1]; ++edge) sources[edge] = place(tree, sources[edge]);
    }
  }

  int64_t seeds() const { return seeds_; }
  int64_t nodes_after(int64_t hop) const {
    const Made& next = hops_[hop];
    return next.first_target + next.targets;
  }
  int64_t count_nodes() const { return count_; }
  const Id* nodes() const { return nodes_.data(); }
  const Id* trees() const { return trees_.data(); }  // of disjoint samples: the seed of each node
  const Hop<Id>& hop(int64_t number) const { return hops_[number]; }
  Hop<Id>& hop(int64_t number) { return hops_[number]; }

 private:
  using Made = Hop<Id>;
  struct Fan {
    const int64_t* of_relation;
    int64_t width;  // 1: a number for all relations together; more: one for each
    const Rule<Id>& rule;
    uint64_t key;
  };

  // Room for that many more nodes.
  void reserve(int64_t more) {
    const int64_t most = count_ + more;
    nodes_.reserve(most, count_);
    if (!is_disjoint_) {
      table_.reserve(most, nodes_.data());
      return;
    }
    trees_.reserve(most, count_);
    keys_.reserve(most, count_);
    pairs_.reserve(most, keys_.data());
  }

  Id place(Id tree, Id node) {
    if (!is_disjoint_) {
      const Id position = table_.place(node, nodes_.data());
      count_ = table_.count();
      return position;
    }
    const auto position = pairs_.place(static_cast<int64_t>(tree) * num_nodes_ + node, keys_.data());
    nodes_.data()[position] = node;
    trees_.data()[position] = tree;
    count_ = pairs_.count();
    return static_cast<Id>(position);
  }

  // Calls body(begin, end, fan-out) for each part of a node's row that has a fan-out of its own.
  template <class Body>
  static void for_each_run(const Row<Id>& row, const Fan& fan, const Body& body) {
    if (fan.width == 1) {
      body(row.begin, row.end, fan.of_relation[0]);
      return;
    }
    const int64_t degree = row.end - row.begin;
    for (int64_t at = 0; at < degree;) {
      const int64_t stop = run_end(row.relations, at, degree);
      body(row.begin + at, row.begin + stop, fan.of_relation[row.relations[at]]);
      at = stop;
    }
  }

  template <class Graph>
  bool count(const Graph& graph, Made& made, const Fan& fan, int64_t threads) {
    const Id* targets = nodes_.data() + made.first_target;
    Id* offsets = made.offsets.reserve(made.targets + 1);
    std::atomic<bool> is_too_large{false};
    offsets[0] = 0;
    on_each_target(made.targets, threads, [&](int64_t begin, int64_t end, Scratch& scratch) {
      for (int64_t n = begin; n < end; ++n) {
        if (n + 16 < end) graph.prefetch_row(n + 16, targets[n + 16]);
        int64_t total = 0;
        bool is_over = false;
        const Row<Id> row = graph.row(n, targets[n]);
        for_each_run(row, fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          int64_t count;
          if (fan.rule.is_plain()) {
            count = taken(stop - first, fan_out, fan.rule.replace);
          } else {
            count = candidates(graph, row, fan, first, stop, made.first_target + n, scratch)
                        .count_taken(fan_out);
          }
          is_over |= __builtin_add_overflow(total, count, &total);
        });
        offsets[n + 1] = static_cast<Id>(total);
        if (is_over || offsets[n + 1] != total) is_too_large = true;
      }
    });
    made.edges = 0;
    if (is_too_large) return false;
    for (int64_t n = 1; n <= made.targets; ++n) {
      if (__builtin_add_overflow(offsets[n - 1], offsets[n], &offsets[n])) return false;
    }
    made.edges = offsets[made.targets];
    return true;
  }

  template <class Graph>
  void draw_all(const Graph& graph, Made& made, const Fan& fan, int64_t threads) {
    const Id* targets = nodes_.data() + made.first_target;
    const Id* offsets = made.offsets.data();
    Id* sources = made.sources.reserve(made.edges);
    Id* positions = made.positions.reserve(made.edges);
    on_each_target(made.targets, threads, [&](int64_t begin, int64_t end, Scratch& scratch) {
      for (int64_t n = begin; n < end; ++n) {
        if (n + 8 < end) graph.prefetch_sources(targets[n + 8]);
        RandomStream random(stream_key(fan.key, made.first_target + n), static_cast<uint64_t>(targets[n]));
        Id* out = positions + offsets[n];
        const Row<Id> row = graph.row(n, targets[n]);
        for_each_run(row, fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          if (fan.rule.is_plain()) {
            out = draw(random, first, stop - first, fan_out, fan.rule.replace, scratch.marks, out);
          } else {
            auto found = candidates(graph, row, fan, first, stop, made.first_target + n, scratch);
            out = found.take(random, fan.key, fan_out, graph.sources, out);
          }
        });
        graph.read_sources(positions, offsets[n], offsets[n + 1], sources);
      }
    });
  }

  template <class Graph>
  Candidates<Id> candidates(const Graph& graph, const Row<Id>& row, const Fan& fan, int64_t first,
                            int64_t stop, int64_t target, Scratch& scratch) const {
    const int64_t tree = is_disjoint_ ? trees_.data()[target] : 0;
    return Candidates<Id>(row, graph.columns, fan.rule, first, stop, tree, scratch);
  }

  // Trees are drawn independently of each other, also where they meet the same node.
  uint64_t stream_key(uint64_t key, int64_t target) const {
    if (!is_disjoint_) return key;
    return mix(key + golden_ratio * (static_cast<uint64_t>(trees_.data()[target]) + 1));
  }

  // Calls body(begin, end, memory of the thread) for each thread's share of the targets.
  template <class Body>
  void on_each_target(int64_t targets, int64_t threads, const Body& body) {
    const int64_t grains = (targets + 255) / 256;
    on_each_thread(threads < grains ? threads : grains, [&](int64_t thread, int64_t team) {
      body(targets * thread / team, targets * (thread + 1) / team, scratch_[thread]);
    });
  }

  Table<Id> table_;
  HashTable<int64_t> pairs_;  // of disjoint samples: (tree, node) as one number
  int64_t num_nodes_;
  bool is_disjoint_ = false;
  Array<Id> nodes_, trees_;
  Array<int64_t> keys_;
  int64_t seeds_ = 0, begin_ = 0, count_ = 0;
  std::deque<Made> hops_;
  std::deque<Scratch> scratch_;
};

}  // namespace shorthaul
