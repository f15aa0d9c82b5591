// Neighbour sampling: hop by hop from the seeds outwards, into memory that is kept between samples.
//
// One hop: count what each target takes (threads), add up (one thread), draw positions and read the
// neighbours there (threads), relabel them (one thread: ids are given in the order of appearance).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "shorthaul/parallel.h"
#include "shorthaul/sampling/array.h"
#include "shorthaul/sampling/draw.h"
#include "shorthaul/sampling/random.h"
#include "shorthaul/sampling/relabel.h"

namespace shorthaul {

// What is sampled from: the neighbours of node n are sources[pointers[n] .. pointers[n + 1]), and their
// relations, ascending within each node, where fan-outs are per relation.
template <class Id>
struct Neighbours {
  const Id* pointers;
  const Id* sources;
  const Id* relations;
  int64_t num_nodes;
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
  int64_t sample(const Neighbours<Id>& graph, const Id* seeds, int64_t num_seeds,
                 Id* seed_rows, const int64_t* fan_outs, const int64_t* fan_widths,
                 int64_t hops, int64_t relations, bool replace, bool resample, uint64_t key, int64_t threads) {
    for (int64_t n = 0; n < num_seeds; ++n) {
      if (seeds[n] < 0 || seeds[n] >= graph.num_nodes) return 1 + n;
    }
    while (static_cast<int64_t>(hops_.size()) < hops) hops_.emplace_back();
    while (static_cast<int64_t>(marks_.size()) < threads) marks_.emplace_back();
    table_.start();
    nodes_.reserve(num_seeds);
    table_.reserve(num_seeds, nodes_.data());
    for (int64_t n = 0; n < num_seeds; ++n) seed_rows[n] = table_.place(seeds[n], nodes_.data());
    seeds_ = table_.count();
    int64_t begin = 0;
    for (int64_t hop = 0; hop < hops; ++hop) {
      Made& made = hops_[hop];
      made.first_target = resample ? 0 : begin;
      begin = table_.count();
      made.targets = begin - made.first_target;
      const Fan fan{fan_outs + hop * relations, fan_widths[hop], replace,
                    mix(key + golden_ratio * static_cast<uint64_t>(hop + 1))};
      if (!count(graph, made, fan, threads)) return -1;
      draw_all(graph, made, fan, threads);
      relabel(made);
    }
    return 0;
  }

  int64_t seeds() const { return seeds_; }
  int64_t nodes_after(int64_t hop) const {
    const Made& next = hops_[hop];
    return next.first_target + next.targets;
  }
  int64_t count_nodes() const { return table_.count(); }
  const Id* nodes() const { return nodes_.data(); }
  const Hop<Id>& hop(int64_t number) const { return hops_[number]; }

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
  static void for_each_run(const Neighbours<Id>& graph, Id node, const Fan& fan,
                           const Body& body) {
    const int64_t begin = graph.pointers[node], end = graph.pointers[node + 1];
    if (fan.width == 1) {
      body(begin, end, fan.of_relation[0]);
      return;
    }
    for (int64_t at = begin; at < end;) {
      const int64_t stop = run_end(graph.relations, at, end);
      body(at, stop, fan.of_relation[graph.relations[at]]);
      at = stop;
    }
  }

  bool count(const Neighbours<Id>& graph, Made& made, const Fan& fan, int64_t threads) {
    const Id* targets = nodes_.data() + made.first_target;
    Id* offsets = made.offsets.reserve(made.targets + 1);
    std::atomic<bool> is_too_large{false};
    offsets[0] = 0;
    parallel_for(made.targets, 256, threads, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (n + 16 < end) __builtin_prefetch(graph.pointers + targets[n + 16]);
        int64_t total = 0;
        for_each_run(graph, targets[n], fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          total += taken(stop - first, fan_out, fan.replace);
        });
        offsets[n + 1] = static_cast<Id>(total);
        if (offsets[n + 1] != total) is_too_large = true;
      }
    });
    int64_t total = 0;
    for (int64_t n = 1; n <= made.targets; ++n) {
      total += offsets[n];
      offsets[n] = static_cast<Id>(total);
    }
    made.edges = total;
    return !is_too_large && static_cast<int64_t>(static_cast<Id>(total)) == total;
  }

  void draw_all(const Neighbours<Id>& graph, Made& made, const Fan& fan,
                int64_t threads) {
    const Id* targets = nodes_.data() + made.first_target;
    const Id* offsets = made.offsets.data();
    Id* sources = made.sources.reserve(made.edges);
    Id* positions = made.positions.reserve(made.edges);
    const int64_t grains = (made.targets + 255) / 256;
    on_each_thread(threads < grains ? threads : grains, [&](int64_t thread, int64_t team) {
      const int64_t begin = made.targets * thread / team, end = made.targets * (thread + 1) / team;
      Marks& marks = marks_[thread];
      for (int64_t n = begin; n < end; ++n) {
        if (n + 8 < end) __builtin_prefetch(graph.sources + graph.pointers[targets[n + 8]]);
        RandomStream random(fan.key, static_cast<uint64_t>(targets[n]));
        Id* out = positions + offsets[n];
        for_each_run(graph, targets[n], fan, [&](int64_t first, int64_t stop, int64_t fan_out) {
          out = draw(random, first, stop - first, fan_out, fan.replace, marks, out);
        });
        for (int64_t edge = offsets[n]; edge < offsets[n + 1]; ++edge) {
          sources[edge] = graph.sources[positions[edge]];
        }
      }
    });
  }

  void relabel(Made& made) {
    Id* nodes = nodes_.reserve(table_.count() + made.edges, table_.count());
    table_.reserve(table_.count() + made.edges, nodes);
    Id* sources = made.sources.data();
    for (int64_t edge = 0; edge < made.edges; ++edge) {
      if (edge + 16 < made.edges) table_.prefetch(sources[edge + 16]);
      sources[edge] = table_.place(sources[edge], nodes);
    }
  }

  Table<Id> table_;
  Array<Id> nodes_;
  int64_t seeds_ = 0;
  std::deque<Made> hops_;
  std::deque<Marks> marks_;
};

}  // namespace shorthaul
