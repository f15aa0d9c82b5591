// Stable counting sort on all threads: items are dealt out into rows in the order they are met.
//
// Each chunk of items is counted alone and knows, before any item moves, where in every row its own
// items begin. Nothing is decided by who comes first, so any number of threads writes the same bytes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "shorthaul/jit/include/parallel.h"

namespace shorthaul {

constexpr int64_t smallest_chunk = 4096;
constexpr int32_t out_of_memory = 1;

// Chunk c of `items` begins here; it ends where the next begins.
inline int64_t chunk_start(int64_t items, int64_t chunk, int64_t chunks) {
  return static_cast<int64_t>(static_cast<__int128>(items) * chunk / chunks);
}

template <class Body>
inline void each_chunk(int64_t chunks, int64_t threads, const Body& body) {
  on_each_thread(threads < chunks ? threads : chunks, [&](int64_t thread, int64_t team) {
    for (int64_t chunk = thread; chunk < chunks; chunk += team) body(chunk);
  });
}

// Counts are kept per chunk and row: with many rows and few items they would outgrow the items.
inline int64_t choose_chunks(int64_t items, int64_t rows, int64_t threads) {
  int64_t chunks = items / smallest_chunk + 1;
  if (chunks > threads) chunks = threads;
  const int64_t affordable = 1 + 4 * items / (rows + 1);
  return chunks < affordable ? chunks : affordable;
}

// counts[chunk][row] -> where the chunk's items of that row begin: rows in order, and within a row the
// chunks in order. `pointers` gets where each row begins, and at last where the last one ends.
template <class Index>
inline void counts_to_positions(Index* counts, Index* pointers, int64_t rows, int64_t chunks,
                                int64_t threads, Index* block_totals) {
  // Few counts are added up sooner than a second thread wakes.
  const int64_t blocks = rows * chunks < 1 << 16 ? 1 : chunks;
  const auto block_start = [&](int64_t block) { return chunk_start(rows, block, blocks); };
  if (blocks > 1) {
    each_chunk(blocks, threads, [&](int64_t block) {
      Index total = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const Index* const own = counts + chunk * rows;
        for (int64_t row = block_start(block); row < block_start(block + 1); ++row) total += own[row];
      }
      block_totals[block] = total;
    });
    for (int64_t block = 0, before = 0; block < blocks; ++block) {
      const Index total = block_totals[block];
      block_totals[block] = static_cast<Index>(before);
      before += total;
    }
  } else {
    block_totals[0] = 0;
  }
  each_chunk(blocks, threads, [&](int64_t block) {
    Index position = block_totals[block];
    const int64_t stop = block_start(block + 1);
    for (int64_t row = block_start(block); row < stop; ++row) {
      pointers[row] = position;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        Index& count = counts[chunk * rows + row];
        const Index here = count;
        count = position;
        position += here;
      }
    }
    if (block + 1 == blocks) pointers[rows] = position;
  });
}

// Asks for the line of `at` to be ready for writing. Rows are written to in no order that the hardware
// could foresee, and a write that waits holds up all that come after it.
template <class Value>
inline void will_write(const Value* at) {
  __builtin_prefetch(at, 1, 3);
}

// How many items ahead of its own writes a loop asks for those to come.
constexpr int64_t ahead_items = 24;

// Item i goes to row keys[i]: start_chunk(first item) gives a function that is called with (item,
// position) for the chunk's items, one after the other; before(position) is called some items earlier.
template <class Index, class StartChunk, class Before>
inline int32_t deal_out(const Index* keys, Index* pointers, int64_t items, int64_t rows, int64_t threads,
                        const StartChunk& start_chunk, const Before& before) {
  struct Free {
    void operator()(Index* memory) const { std::free(memory); }
  };
  const int64_t chunks = choose_chunks(items, rows, threads);
  const size_t needed = static_cast<size_t>(chunks * rows + chunks);
  const std::unique_ptr<Index, Free> counts(static_cast<Index*>(std::calloc(needed, sizeof(Index))));
  if (!counts) return out_of_memory;
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const own = counts.get() + chunk * rows;
    const int64_t stop = chunk_start(items, chunk + 1, chunks);
    for (int64_t item = chunk_start(items, chunk, chunks); item < stop; ++item) ++own[keys[item]];
  });
  counts_to_positions(counts.get(), pointers, rows, chunks, threads, counts.get() + chunks * rows);
  each_chunk(chunks, threads, [&](int64_t chunk) {
    Index* const next = counts.get() + chunk * rows;
    const int64_t start = chunk_start(items, chunk, chunks);
    const int64_t stop = chunk_start(items, chunk + 1, chunks);
    auto move = start_chunk(start);
    int64_t item = start;
    for (; item < stop - ahead_items; ++item) {
      before(next[keys[item + ahead_items]]);
      move(item, next[keys[item]]++);
    }
    for (; item < stop; ++item) move(item, next[keys[item]]++);
  });
  return 0;
}

}  // namespace shorthaul
