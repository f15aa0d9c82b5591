// Rows with very many finer rows: hubs, whose finer rows threads share.
//
// A row loop goes over a row in sweeps, each of which needs what the one before has reduced. Most rows are
// one thread's from the first sweep to the last. A hub's sweeps are taken one by one: threads take parts of
// its finer rows, and what they have reduced is put together, part after part, before the next sweep::
//
//     sweep 0   part 0 | part 1 | part 2 ...   highest logits, then the highest of them
//     sweep 1   part 0 | part 1 | part 2 ...   sums of powers, then their sum
//     ...
//     at last   what the row itself is made into
//
// Which rows are hubs and where they are cut depends on the graph alone, and so does every result.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

constexpr int64_t HUB_ROWS = 8192;      // fewer finer rows are not worth waiting for one another
constexpr int64_t PART_ROWS = 2048;     // what one thread takes at a time: four pieces of a sum
constexpr int64_t MOST_HUBS = 256;      // larger than a 256th of all: the others balance by themselves
constexpr int64_t ROWS_AT_ONCE = 1 << 20;  // finer rows of hubs whose kept values are held together

// What a call of a loop's text goes through: rows as wholes, or one sweep over a part of one hub.
template <class real>
struct RowPart {
  int sweep = -1;  // all of them; a hub's own rows are made in the sweep after the last
  int64_t begin = 0, end = 0;    // the finer rows of the part
  const real* known = nullptr;   // what earlier sweeps have reduced
  real* made = nullptr;          // what this one reduces
  real* kept = nullptr;          // values of finer rows that sweeps hand on
};

struct Reduction {
  enum Kind { SUM, MAX, MIN } kind;
  int sweep;
  int64_t offset, size;  // of its elements among those of all reductions
};

// The rows that were left out by whoever went through all rows; each thread may note some.
class Hubs {
 public:
  Hubs(int64_t finer_rows) : limit_(std::max(HUB_ROWS, finer_rows / MOST_HUBS)) {}
  bool contains(int64_t finer_rows) const { return finer_rows > limit_; }
  void note(int64_t row) { rows_[count_.fetch_add(1)] = row; }
  int64_t count() const { return count_.load(); }
  const int64_t* sorted() {
    std::sort(rows_, rows_ + count());
    return rows_;
  }

 private:
  const int64_t limit_;
  std::atomic<int64_t> count_{0};
  int64_t rows_[MOST_HUBS];  // enough: each has more than a 256th of all finer rows
};

// NaN wins, as in PyTorch.
template <class real>
inline real reduced(Reduction::Kind kind, real so_far, real next) {
  if (kind == Reduction::SUM) return so_far + next;
  const bool is_further = kind == Reduction::MAX ? next > so_far : next < so_far;
  return is_further || next != next ? next : so_far;
}

// Goes through the noted rows: work(scratch, row, row + 1, part) runs the loop's text.
template <class real, int REDUCTIONS, class Index, class Work>
void share_hubs(Hubs& hubs, const Index* pointers, int sweeps, const Reduction (&reductions)[REDUCTIONS],
                int64_t reduced_size, int64_t kept_size, int64_t threads, const Work& work) {
  struct Unit {
    int64_t hub, begin, end;
  };
  const int64_t count = hubs.count();
  const int64_t* const rows = hubs.sorted();
  std::vector<Unit> units;
  std::vector<int64_t> first, kept_first;  // of the hubs taken together: units, kept finer rows
  std::vector<real> known, made, kept, scratch;
  for (int64_t next = 0; next < count;) {
    const int64_t from = next;
    units.clear();
    first.assign(1, 0);
    kept_first.assign(1, 0);
    do {
      const int64_t begin = pointers[rows[next]], end = pointers[rows[next] + 1];
      for (int64_t at = begin; at < end; at += PART_ROWS)
        units.push_back({next - from, at, std::min(at + PART_ROWS, end)});
      first.push_back(int64_t(units.size()));
      kept_first.push_back(kept_first.back() + end - begin);
      ++next;
    } while (next < count &&
             kept_first.back() + pointers[rows[next] + 1] - pointers[rows[next]] <= ROWS_AT_ONCE);
    const int64_t together = next - from, parts = int64_t(units.size());
    known.resize(together * reduced_size);
    made.resize(parts * reduced_size);
    kept.resize(kept_first.back() * kept_size);
    const auto part_of = [&](int sweep, int64_t hub, int64_t begin, int64_t end, real* to) {
      return RowPart<real>{sweep, begin, end, known.data() + hub * reduced_size, to,
                           kept.data() + kept_first[hub] * kept_size};
    };
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      std::atomic<int64_t> next_unit{0};
      on_each_thread(std::min(parts, threads), [&](int64_t, int64_t) {
        std::vector<real> unused;
        for (int64_t number; (number = next_unit.fetch_add(1)) < parts;) {
          const Unit& unit = units[number];
          const int64_t row = rows[from + unit.hub];
          work(unused, row, row + 1,
               part_of(sweep, unit.hub, unit.begin, unit.end, made.data() + number * reduced_size));
        }
      });
      for (const Reduction& each : reductions) {
        if (each.sweep != sweep) continue;
        for (int64_t hub = 0; hub < together; ++hub) {
          real* const total = known.data() + hub * reduced_size + each.offset;
          const real* part = made.data() + first[hub] * reduced_size + each.offset;
          std::copy(part, part + each.size, total);
          for (int64_t unit = first[hub] + 1; unit < first[hub + 1]; ++unit) {
            part += reduced_size;
            for (int64_t i = 0; i < each.size; ++i) total[i] = reduced(each.kind, total[i], part[i]);
          }
        }
      }
    }
    for (int64_t hub = 0; hub < together; ++hub) {
      const int64_t row = rows[from + hub];
      work(scratch, row, row + 1, part_of(sweeps, hub, 0, 0, nullptr));
    }
  }
}

}  // namespace shorthaul
