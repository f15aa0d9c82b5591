// Rows times a matrix, without the matrix of gathered rows: each thread gathers a few rows into its
// own tile, which stays in the second cache, and multiplies them by panels of the weights.
//
// Every output is one sum over the columns in order: it does not depend on threads or tiles.
#pragma once

#include "shorthaul/tensors/kernels/sums.h"

namespace shorthaul {

constexpr int tile_group = 6, panel_vectors = 2;  // 12 sums in registers, as AVX2 has room for
constexpr int64_t panel = panel_vectors * lanes;

// `groups` rows of the tile times one panel; sums stay in registers over all columns.
template <int groups>
static SHORTHAUL_INLINE void multiply_group(const real* tile, int64_t width, const real* weights,
                                            vec (&sums)[tile_group][panel_vectors]) {
  vec own[groups][panel_vectors];
  for (int row = 0; row < groups; ++row) {
    for (int v = 0; v < panel_vectors; ++v) own[row][v] = sums[row][v];
  }
  for (int64_t column = 0; column < width; ++column) {
    vec right[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) right[v] = load(weights + column * panel + v * lanes);
#pragma GCC unroll 6
    for (int row = 0; row < groups; ++row) {
      const vec left = broadcast(tile[row * width + column]);
#pragma GCC unroll 2
      for (int v = 0; v < panel_vectors; ++v) accumulate(own[row][v], left, right[v]);
    }
  }
  for (int row = 0; row < groups; ++row) {
    for (int v = 0; v < panel_vectors; ++v) sums[row][v] = own[row][v];
  }
}

template <class Seen>
struct Weights {
  using value = typename Seen::value;
  real* panels;  // panels[p][column][lane]: one panel of outputs after another, zeros at the end
  real* bias;    // one value for each lane of each panel
  int64_t outputs;

  static int64_t panels_of(int64_t outputs) { return (outputs + panel - 1) / panel; }
  static int64_t reals(int64_t outputs, int64_t width) { return panels_of(outputs) * panel * (width + 1); }

  void pack(const value* weight, const value* of_bias, int64_t width) const {
    for (int64_t output = 0; output < panels_of(outputs) * panel; ++output) {
      real* to = panels + output / panel * panel * width + output % panel;
      const bool is_there = output < outputs;
      for (int64_t column = 0; column < width; ++column) {
        to[column * panel] = is_there ? Seen::widen(weight[output * width + column]) : real{0};
      }
      bias[output] = is_there && of_bias != nullptr ? Seen::widen(of_bias[output]) : real{0};
    }
  }
};

// The rows from `begin` to `end`: tile by tile, group by group.
template <class Stored, class Seen>
inline void multiply_tiles(const Table<Stored>& table, Ids<int64_t> ids, const Weights<Seen>& weights,
                           typename Seen::value* out, int64_t begin, int64_t end, real* tile,
                           int64_t tile_rows) {
  for (int64_t first = begin; first < end; first += tile_rows) {
    const int64_t rows = end - first < tile_rows ? end - first : tile_rows;
    for (int64_t row = 0; row < rows; ++row) widen_row<Stored, AsReal>(table, ids[first + row], tile + row * table.width);
    for (int64_t start = 0; start < weights.outputs; start += panel) {
      const int64_t width = weights.outputs - start < panel ? weights.outputs - start : panel;
      for (int64_t row = 0; row < rows; row += tile_group) {
        const int64_t group = rows - row < tile_group ? rows - row : tile_group;
        // While this tile is multiplied, the rows of the next one are on their way.
        for (int64_t next = first + tile_rows + row; start == 0 && next < first + tile_rows + row + group && next < end; ++next) {
          prefetch_row(table.address(ids[next]), table.row_bytes());
        }
        vec sums[tile_group][panel_vectors];
        for (int64_t each = 0; each < group; ++each) {
          for (int v = 0; v < panel_vectors; ++v) sums[each][v] = load(weights.bias + start + v * lanes);
        }
        const real* of_panel = weights.panels + start * table.width;
        const real* of_rows = tile + row * table.width;
        if (group == tile_group) {
          multiply_group<tile_group>(of_rows, table.width, of_panel, sums);
        } else {
          for (int64_t each = 0; each < group; ++each) {
            vec one[tile_group][panel_vectors];
            for (int v = 0; v < panel_vectors; ++v) one[0][v] = sums[each][v];
            multiply_group<1>(of_rows + each * table.width, table.width, of_panel, one);
            for (int v = 0; v < panel_vectors; ++v) sums[each][v] = one[0][v];
          }
        }
        for (int64_t each = 0; each < group; ++each) {
          auto* to = out + (first + row + each) * weights.outputs + start;
          for (int v = 0; v < panel_vectors; ++v) {
            const int64_t rest = width - v * lanes;
            if (rest > 0) store_part<Seen>(to + v * lanes, sums[each][v], rest);
          }
        }
      }
    }
  }
}

}  // namespace shorthaul
