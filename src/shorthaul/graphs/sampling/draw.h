// Which neighbors of one node are taken: positions in its run of neighbors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shorthaul/graphs/sampling/array.h"
#include "shorthaul/graphs/sampling/random.h"

namespace shorthaul {

// How many of `degree` neighbors are taken; a negative fan-out takes all.
inline int64_t taken(int64_t degree, int64_t fan_out, bool replace) {
  if (fan_out < 0) return degree;
  if (replace) return degree > 0 ? fan_out : 0;
  return degree < fan_out ? degree : fan_out;
}

// Marks of one thread, all clear between two draws.
class Marks {
 public:
  void reserve(int64_t count) {
    const int64_t words = count / 64 + 1;
    if (words > words_) {
      std::memset(marks_.reserve(words), 0, sizeof(uint64_t) * words);
      words_ = words;
    }
  }
  bool set(int64_t at) {  // false when it was set before
    uint64_t& word = marks_.data()[at >> 6];
    const uint64_t bit = uint64_t{1} << (at & 63);
    const bool is_new = (word & bit) == 0;
    word |= bit;
    return is_new;
  }
  bool has(int64_t at) const { return (marks_.data()[at >> 6] >> (at & 63)) & 1; }
  void clear(int64_t at) { marks_.data()[at >> 6] = 0; }

 private:
  Array<uint64_t> marks_;
  int64_t words_ = 0;
};

// Writes `first` plus each position taken of [0, degree); returns where the next ones go.
//
// Without replacement: Floyd's algorithm, which makes every subset of the size equally likely with one
// random number for each member. The subset comes out in ascending order, so runs of one relation stay
// together and neighbors are read forwards.
template <class Position>
inline Position* draw(RandomStream& random, int64_t first, int64_t degree, int64_t fan_out,
                      bool replace, Marks& marks, Position* out) {
  const int64_t count = taken(degree, fan_out, replace);
  if (replace && fan_out >= 0) {
    for (int64_t n = 0; n < count; ++n) *out++ = first + random.below(degree);
  } else if (count == degree) {
    for (int64_t n = 0; n < count; ++n) *out++ = first + n;
  } else if (degree <= 64) {
    uint64_t chosen = 0;  // most rows are this short: the whole set is in a register
    for (int64_t last = degree - count; last < degree; ++last) {
      const uint64_t bit = uint64_t{1} << random.below(last + 1);
      chosen |= (chosen & bit) ? uint64_t{1} << last : bit;
    }
    for (; chosen != 0; chosen &= chosen - 1) *out++ = first + __builtin_ctzll(chosen);
  } else {
    marks.reserve(degree);
    Position* const begin = out;
    for (int64_t last = degree - count; last < degree; ++last) {
      int64_t at = random.below(last + 1);
      if (!marks.set(at)) marks.set(at = last);
      *out++ = at;
    }
    std::sort(begin, out);
    for (Position* each = begin; each != out; ++each) {
      marks.clear(*each);
      *each += first;
    }
  }
  return out;
}

// Where the run of equal relations that starts at `begin` ends; looks ahead in doubling steps.
template <class Id>
inline int64_t run_end(const Id* relations, int64_t begin, int64_t end) {
  const Id relation = relations[begin];
  int64_t step = 1, low = begin;
  while (low + step < end && relations[low + step] == relation) {
    low += step;
    step *= 2;
  }
  const int64_t high = low + step < end ? low + step : end;
  return std::upper_bound(relations + low, relations + high, relation) - relations;
}

}  // namespace shorthaul
