// Global node ids to positions in one sample's list of nodes, in the order of first appearance.
//
// Nothing is cleared between samples: an entry holds `base + position`, and `base` moves past
// everything that earlier samples wrote. Only when 32 bits run out is a table set to zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "shorthaul/graphs/sampling/array.h"

namespace shorthaul {

// The stamps of one table.
class Epochs {
 public:
  // Starts a sample of at most `most` nodes after one of `last`; true when the table must be zeroed.
  bool advance(int64_t last, int64_t most) {
    const uint64_t next = static_cast<uint64_t>(base) + static_cast<uint64_t>(last);
    const bool is_over = base == 0 || next + static_cast<uint64_t>(most) > UINT32_MAX;
    base = is_over ? 1 : static_cast<uint32_t>(next);
    return is_over;
  }
  uint32_t base = 0;
};

// One entry of four bytes for each node of the graph: one look per id.
template <class Id>
class DirectTable {
 public:
  explicit DirectTable(int64_t num_nodes) : num_nodes_(num_nodes) {
    entries_ = static_cast<uint32_t*>(std::calloc(num_nodes + 1, sizeof(uint32_t)));
    if (entries_ == nullptr) throw std::bad_alloc();
  }
  DirectTable(const DirectTable&) = delete;
  ~DirectTable() { std::free(entries_); }

  void start() {
    const bool is_first = epochs_.base == 0;
    if (epochs_.advance(count_, num_nodes_) && !is_first) {
      std::memset(entries_, 0, num_nodes_ * sizeof(uint32_t));
    }
    count_ = 0;
  }
  void reserve(int64_t, const Id*) {}
  void prefetch(Id node) const { __builtin_prefetch(entries_ + node, 1); }

  // The node's position; the node is added to `nodes` when it is new.
  Id place(Id node, Id* nodes) {
    uint32_t& entry = entries_[node];
    if (entry < epochs_.base) {
      entry = epochs_.base + static_cast<uint32_t>(count_);
      nodes[count_] = node;
      return static_cast<Id>(count_++);
    }
    return static_cast<Id>(entry - epochs_.base);
  }
  int64_t count() const { return count_; }

 private:
  int64_t num_nodes_;
  uint32_t* entries_ = nullptr;
  int64_t count_ = 0;
  Epochs epochs_;
};

// Open addressing, at most half full: for graphs so large that a table over all nodes would miss the
// cache, and fault in a page, with nearly every id.
template <class Id>
class HashTable {
 public:
  explicit HashTable(int64_t num_nodes) : num_nodes_(num_nodes) {}
  HashTable(const HashTable&) = delete;
  ~HashTable() { std::free(entries_); }

  void start() {
    if (epochs_.advance(count_, most_nodes) && entries_ != nullptr) clear();
    count_ = 0;
  }

  // Room for `most` nodes in all; those placed so far are in `nodes`.
  void reserve(int64_t most, const Id* nodes) {
    if (most > num_nodes_) most = num_nodes_;
    if (most > most_nodes) throw std::bad_alloc();
    if (2 * most <= capacity_) return;
    int bits = 12;
    while ((int64_t{1} << bits) < 2 * most) ++bits;
    std::free(entries_);
    entries_ = static_cast<Entry*>(std::calloc(int64_t{1} << bits, sizeof(Entry)));
    if (entries_ == nullptr) {
      capacity_ = 0;
      throw std::bad_alloc();
    }
    capacity_ = int64_t{1} << bits;
    shift_ = 64 - bits;
    for (int64_t position = 0; position < count_; ++position) {
      Entry& entry = find(nodes[position]);
      entry.node = nodes[position];
      entry.stamp = epochs_.base + static_cast<uint32_t>(position);
    }
  }
  void prefetch(Id node) const { __builtin_prefetch(entries_ + home(node), 1); }

  Id place(Id node, Id* nodes) {
    Entry& entry = find(node);
    if (entry.stamp < epochs_.base) {
      entry.node = node;
      entry.stamp = epochs_.base + static_cast<uint32_t>(count_);
      nodes[count_] = node;
      return static_cast<Id>(count_++);
    }
    return static_cast<Id>(entry.stamp - epochs_.base);
  }
  int64_t count() const { return count_; }

  // The node's position, or -1 where it has not been placed.
  int64_t find_position(Id node) const {
    for (int64_t at = home(node); capacity_ > 0; at = (at + 1) & (capacity_ - 1)) {
      const Entry& entry = entries_[at];
      if (entry.stamp < epochs_.base) return -1;
      if (entry.node == node) return entry.stamp - epochs_.base;
    }
    return -1;
  }

 private:
  struct Entry {
    Id node;
    uint32_t stamp;
  };
  static constexpr int64_t most_nodes = int64_t{1} << 31;  // of one sample: stamps have 32 bits

  int64_t home(Id node) const {
    return static_cast<int64_t>((static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15ull) >> shift_);
  }

  // The node's entry, or the free one where it belongs.
  Entry& find(Id node) {
    for (int64_t at = home(node);; at = (at + 1) & (capacity_ - 1)) {
      Entry& entry = entries_[at];
      if (entry.stamp < epochs_.base || entry.node == node) return entry;
    }
  }
  void clear() { std::memset(entries_, 0, capacity_ * sizeof(Entry)); }

  int64_t num_nodes_;
  Entry* entries_ = nullptr;
  int64_t capacity_ = 0;
  int shift_ = 64;
  int64_t count_ = 0;
  Epochs epochs_;
};

}  // namespace shorthaul
