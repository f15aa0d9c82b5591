// Which neighbors of one node may be taken, and which of them are: by weight, by time, by what other
// targets take, without edges that are left out.
//
// Candidates are numbered by rank within a run: in the order of the index, or by time where there are
// times, so that those before a moment are the first ones. A rank is turned into a position at last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "shorthaul/graphs/sampling/array.h"
#include "shorthaul/graphs/sampling/candidates/weights.h"
#include "shorthaul/graphs/sampling/draw.h"
#include "shorthaul/graphs/sampling/random.h"

namespace shorthaul {

enum class Strategy : int64_t {
  uniform = 0,   // each candidate as likely as any other
  weighted = 1,  // in proportion to the edges' weights
  last = 2,      // the latest ones
  shared = 3,    // those whose source has the smallest number; all targets see the same numbers
};

// Where one node's neighbors lie in the index; their relations, ascending, where fan-outs are per
// relation; and where the node's entries in the columns begin.
template <class Id>
struct Row {
  int64_t begin, end;
  const Id* relations;
  int64_t local;
};

// What is known of candidates, row by row, each null where nobody asks for it.
template <class Id>
struct Columns {
  const Id* order;           // by time: how far into its row the candidate of a rank lies
  const int64_t* times;      // by rank, ascending within a run
  const double* weights;     // by rank
  const double* cumulative;  // by rank: the weights of a run so far, this one included, of any scale
  const Id* sources;         // by place in the row
};

// How a hop takes candidates; the same for all its targets.
template <class Id>
struct Rule {
  Strategy strategy;
  bool replace;
  bool allows_equal;          // whether what has the very time of the seed may be seen
  const int64_t* seed_times;  // of each tree; null where time plays no part
  const Id* excluded;         // positions, ascending
  int64_t excluded_count;

  bool is_plain() const {
    return strategy == Strategy::uniform && seed_times == nullptr && excluded_count == 0;
  }
};

// Memory of one thread.
struct Scratch {
  Marks marks;
  Array<int64_t> ranks;
  Array<double> cumulative;
  Array<std::pair<uint64_t, int64_t>> numbers;
};

// The candidates of one run: ranks 0 to count.
template <class Id>
class Candidates {
 public:
  Candidates(const Row<Id>& row, const Columns<Id>& columns, const Rule<Id>& rule, int64_t first,
             int64_t stop, int64_t tree, Scratch& scratch)
      : columns_(columns), rule_(rule), scratch_(scratch), row_(row),
        begin_(row.local + (first - row.begin)), count_(stop - first) {
    if (rule.seed_times != nullptr) {
      const int64_t* times = columns.times + begin_;
      const int64_t limit = rule.seed_times[tree];
      count_ = (rule.allows_equal ? std::upper_bound(times, times + count_, limit)
                                  : std::lower_bound(times, times + count_, limit)) - times;
    }
    const Id* from = std::lower_bound(rule.excluded, rule.excluded + rule.excluded_count, first);
    const Id* to = std::lower_bound(from, rule.excluded + rule.excluded_count, stop);
    if (from != to) leave_out(from, to);
    if (rule.strategy == Strategy::weighted) weigh();
  }

  // How many are taken; only candidates with a weight count where there are weights.
  int64_t count_taken(int64_t fan_out) const {
    if (rule_.strategy != Strategy::weighted) return taken(count_, fan_out, rule_.replace);
    if (fan_out >= 0 && rule_.replace) return total() > 0 ? fan_out : 0;
    int64_t found = 0;
    for (int64_t rank = 0; rank < count_ && (fan_out < 0 || found < fan_out); ++rank) {
      found += weight(rank) > 0;
    }
    return found;
  }

  // Writes the positions taken, ascending unless they are drawn with replacement; returns the end.
  Id* take(RandomStream& random, uint64_t key, int64_t fan_out, const Id* all_sources, Id* out) {
    Id* const begin = out;
    switch (rule_.strategy) {
      case Strategy::uniform:
        out = draw(random, 0, count_, fan_out, rule_.replace, scratch_.marks, out);
        break;
      case Strategy::last:
        for (int64_t rank = count_ - taken(count_, fan_out, false); rank < count_; ++rank) *out++ = rank;
        break;
      case Strategy::weighted:
        out = take_weighted(random, fan_out, out);
        break;
      case Strategy::shared:
        out = take_shared(key, fan_out, all_sources, out);
        break;
    }
    for (Id* each = begin; each != out; ++each) *each = static_cast<Id>(position(*each));
    if (!rule_.replace || fan_out < 0) std::sort(begin, out);
    return out;
  }

 private:
  int64_t original(int64_t rank) const { return is_listed_ ? scratch_.ranks.data()[rank] : rank; }
  int64_t offset(int64_t rank) const {  // in the row
    const int64_t at = begin_ + original(rank);
    return columns_.order == nullptr ? at - row_.local : columns_.order[at];
  }
  int64_t position(int64_t rank) const { return row_.begin + offset(rank); }

  void leave_out(const Id* from, const Id* to) {
    int64_t* ranks = scratch_.ranks.reserve(count_);
    int64_t kept = 0;
    for (int64_t rank = 0; rank < count_; ++rank) {
      if (!std::binary_search(from, to, static_cast<Id>(position(rank)))) ranks[kept++] = rank;
    }
    is_listed_ = true;
    count_ = kept;
  }

  // The running sums that weights are read from: those of the row, or new ones where some are left out.
  void weigh() {
    sums_ = columns_.cumulative + begin_;
    if (!is_listed_) return;
    double* own = scratch_.cumulative.reserve(count_ + 1);
    add_up(count_, [&](int64_t rank) { return weight(rank); }, own);
    sums_ = own;
  }
  double total() const { return count_ > 0 ? sums_[count_ - 1] : 0.0; }
  double weight(int64_t rank) const { return columns_.weights[begin_ + original(rank)]; }

  // The rank in whose share of the total `part` falls: inverse of the cumulative distribution.
  int64_t find(double part) const {
    int64_t low = 0, high = count_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (sums_[middle] > part) high = middle; else low = middle + 1;
    }
    while (low == count_ || !(weight(low) > 0)) --low;
    return low;
  }

  Id* take_weighted(RandomStream& random, int64_t fan_out, Id* out) {
    const int64_t wanted = count_taken(fan_out);
    if (rule_.replace && fan_out >= 0) {
      for (int64_t n = 0; n < wanted; ++n) *out++ = find(random.fraction() * total());
      return out;
    }
    // Those that have a weight are taken all where there are no more of them than wanted.
    if (fan_out < 0 || count_taken(wanted + 1) == wanted) {
      for (int64_t rank = 0; rank < count_; ++rank) {
        if (weight(rank) > 0) *out++ = rank;
      }
      return out;
    }
    // One after the other, in proportion to the weights of those that are left: what was taken before
    // is drawn anew, and after some tries those left are added up.
    Marks& marks = scratch_.marks;
    marks.reserve(count_);
    Id* const begin = out;
    for (int64_t n = 0; n < wanted; ++n) {
      int64_t rank = -1;
      for (int64_t attempt = 0; attempt < most_attempts; ++attempt) {
        const int64_t found = find(random.fraction() * total());
        if (marks.set(found)) {
          rank = found;
          break;
        }
      }
      if (rank < 0) {
        rank = find_left(random);
        marks.set(rank);
      }
      *out++ = rank;
    }
    for (Id* each = begin; each != out; ++each) marks.clear(*each);
    return out;
  }

  int64_t find_left(RandomStream& random) {
    // As parts of the largest: those left may be too small to be seen beside what was taken.
    double largest = 0.0, left = 0.0;
    for (int64_t rank = 0; rank < count_; ++rank) {
      if (!scratch_.marks.has(rank)) largest = std::max(largest, weight(rank));
    }
    for (int64_t rank = 0; rank < count_; ++rank) {
      if (!scratch_.marks.has(rank)) left += weight(rank) / largest;
    }
    const double part = random.fraction() * left;
    double sum = 0.0;
    int64_t last = 0;
    for (int64_t rank = 0; rank < count_; ++rank) {
      const double own = weight(rank);
      if (!(own > 0) || scratch_.marks.has(rank)) continue;
      last = rank;
      sum += own / largest;
      if (sum > part) break;
    }
    return last;
  }

  Id* take_shared(uint64_t key, int64_t fan_out, const Id* all_sources, Id* out) {
    const int64_t wanted = taken(count_, fan_out, false);
    auto* numbers = scratch_.numbers.reserve(count_);
    for (int64_t rank = 0; rank < count_; ++rank) {
      const int64_t at = offset(rank);
      const Id source = columns_.sources != nullptr ? columns_.sources[row_.local + at]
                                                    : all_sources[row_.begin + at];
      numbers[rank] = {RandomStream(key, static_cast<uint64_t>(source)).next(), rank};
    }
    if (wanted < count_) std::nth_element(numbers, numbers + wanted, numbers + count_);
    for (int64_t n = 0; n < wanted; ++n) *out++ = static_cast<Id>(numbers[n].second);
    return out;
  }

  static constexpr int64_t most_attempts = 16;

  const Columns<Id>& columns_;
  const Rule<Id>& rule_;
  Scratch& scratch_;
  const Row<Id> row_;
  int64_t begin_, count_;
  bool is_listed_ = false;
  const double* sums_ = nullptr;
};

}  // namespace shorthaul
