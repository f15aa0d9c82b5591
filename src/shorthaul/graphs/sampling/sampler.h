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
#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/graphs/sampling/random.h"
#include "shorthaul/graphs/sampling/relabel.h"

namespace shorthaul {

// Where one node's neighbors lie in the index, and their relations, ascending, where fan-outs are per
// relation.
template <class Id>
struct Row {
  int64_t begin, end;
  const Id* relations;
};

// What is sampled from: the neighbors of node n are sources[pointers[n] .. pointers[n + 1]).
template <class Id>
struct Neighbors {
  const Id* pointers;
  const Id* sources;
  const Id* relations;
  int64_t num_nodes;

  Row<Id> row(int64_t, Id node) const {
    const int64_t begin = pointers[node];
    return {begin, pointers[node + 1], relations == nullptr ? nullptr : relations + begin};
  }
  void prefetch_row(int64_t, Id node) const { __builtin_prefetch(pointers + node); }
  void prefetch_sources(Id node) const { __builtin_prefetch(sources + pointers[node]); }
  void read_sources(const Id* positions, int64_t first, int64_t stop, Id* out) const {
    for (int64_t edge = first; edge < stop; ++edge) out[edge] = sources[positions[edge]];
  }
};

// The rows of one hop's targets, read from disk: where each begins and ends in the index, and the
// relations of all of them one after the other. Their neighbors are read when it is known which.
template <class Id>
struct ReadRows {
  const Id* ends;             // begin and end, target by target
  const Id* relations;        // null where fan-outs are for all relations together
  const int64_t* row_starts;  // where a target's relations begin

  Row<Id> row(int64_t target, Id) const {
    const Id* own = relations == nullptr ? nullptr : relations + row_starts[target];
    return {ends[2 * target], ends[2 * target + 1], own};
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
  Array<Id> positions;    // positions in the graph's index
};

template <class Id, template <class> class Table>
class Sampler {
 public:
  explicit Sampler(int64_t num_nodes) : table_(num_nodes) {}

  // Returns 0, or 1 + the position of a seed that is no node, or a negative number for overflow.
  int64_t sample(const Neighbors<Id>& graph, const Id* seeds, int64_t num_seeds,
                 Id* seed_rows, const int64_t* fan_outs, const int64_t* fan_widths,
                 int64_t hops, int64_t relations, bool replace, bool resample, uint64_t key, int64_t threads) {
    for (int64_t n = 0; n < num_seeds; ++n) {
      if (seeds[n] < 0 || seeds[n] >= graph.num_nodes) return 1 + n;
    }
    start(seeds, num_seeds, seed_rows, hops, threads);
    for (int64_t hop = 0; hop < hops; ++hop) {
      start_hop(hop, resample);
      const int64_t* fan = fan_outs + hop * relations;
      if (!draw_hop(graph, hop, fan, fan_widths[hop], replace, key, threads)) return -1;
      relabel_hop(hop);
    }
    return 0;
  }

  // The steps of `sample`, for those who read a graph in between: `start`, then for each hop
  // `start_hop`, `draw_hop` and `relabel_hop`.
  void start(const Id* seeds, int64_t num_seeds, Id* seed_rows, int64_t hops, int64_t threads) {
    while (static_cast<int64_t>(hops_.size()) < hops) hops_.emplace_back();
    while (static_cast<int64_t>(marks_.size()) < threads) marks_.emplace_back();
    table_.start();
    nodes_.reserve(num_seeds);
    table_.reserve(num_seeds, nodes_.data());
    for (int64_t n = 0; n < num_seeds; ++n) seed_rows[n] = table_.place(seeds[n], nodes_.data());
    seeds_ = table_.count();
    begin_ = 0;
  }

  // Whose neighbors the hop draws: every node met so far, or those that the hop before it met.
  void start_hop(int64_t hop, bool resample) {
    Made& made = hops_[hop];
    made.first_target = resample ? 0 : begin_;
    begin_ = table_.count();
    made.targets = begin_ - made.first_target;
  }

  // False when the edges are more than an id can count.
  template <class Graph>
  bool draw_hop(const Graph& graph, int64_t hop, const int64_t* fan_outs, int64_t fan_width, bool replace,
                uint64_t key, int64_t threads) {
    const Fan fan{fan_outs, fan_width, replace, mix(key + golden_ratio * static_cast<uint64_t>(hop + 1))};
    if (!count(graph, hops_[hop], fan, threads)) return false;
    draw_all(graph, hops_[hop], fan, threads);
    return true;
  }

  void relabel_hop(int64_t hop) {
    Made& made = hops_[hop];
    Id* nodes = nodes_.reserve(table_.count() + made.edges, table_.count());
    table_.reserve(table_.count() + made.edges, nodes);
    Id* sources = made.sources.data();
    for (int64_t edge = 0; edge < made.edges; ++edge) {
      if (edge + 16 < made.edges) table_.prefetch(sources[edge + 16]);
      sources[edge] = table_.place(sources[edge], nodes);
    }
  }

  int64_t seeds() const { return seeds_; }
  int64_t nodes_after(int64_t hop) const {
    const Made& next = hops_[hop];
    return next.first_target + next.targets;
  }
  int64_t count_nodes() const { return table_.count(); }
  const Id* nodes() const { return nodes_.data(); }
  const Hop<Id>& hop(int64_t number) const { return hops_[number]; }
  Hop<Id>& hop(int64_t number) { return hops_[number]; }

 private:
  using Made = Hop<Id>;
  struct Fan {
    const int64_t* of_relation;
    int64_t width;  // 1: a number for all relations together; more: one for each
    bool replace;
    uint64_t key;
  };

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
    parallel_for(made.targets, 256, threads, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (n + 16 < end) graph.prefetch_row(n + 16, targets[n + 16]);
        int64_t total = 0;
        bool is_over = false;
        for_each_run(graph.row(n, targets[n]), fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          is_over |= __builtin_add_overflow(total, taken(stop - first, fan_out, fan.replace), &total);
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
    const int64_t grains = (made.targets + 255) / 256;
    on_each_thread(threads < grains ? threads : grains, [&](int64_t thread, int64_t team) {
      const int64_t begin = made.targets * thread / team, end = made.targets * (thread + 1) / team;
      Marks& marks = marks_[thread];
      for (int64_t n = begin; n < end; ++n) {
        if (n + 8 < end) graph.prefetch_sources(targets[n + 8]);
        RandomStream random(fan.key, static_cast<uint64_t>(targets[n]));
        Id* out = positions + offsets[n];
        for_each_run(graph.row(n, targets[n]), fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          out = draw(random, first, stop - first, fan_out, fan.replace, marks, out);
        });
        graph.read_sources(positions, offsets[n], offsets[n + 1], sources);
      }
    });
  }

  Table<Id> table_;
  Array<Id> nodes_;
  int64_t seeds_ = 0, begin_ = 0;
  std::deque<Made> hops_;
  std::deque<Marks> marks_;
};

}  // namespace shorthaul
