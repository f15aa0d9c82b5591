// A block of outputs of groups whose output channels are a vector, for tiles that sweep over image columns.
//
// Groups of half a vector share one: two make a bundle, whose lanes are theirs in turn. The values of a channel
// lie side by side for both, so that one load brings them to their lanes. Outputs are put in order as they leave.
//
// A tile is a few output rows high. It takes one image column after another, and adds each value of it to
// the sums of every output that has the column in its window: as many outputs of a row as the kernel has
// columns. So a value is loaded once for all of these, and a weight once for all rows of the tile. Outputs
// see their columns from left to right, and of each column rows and channels in order: the order of every
// other kernel.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"

// What SHORTHAUL_INLINE is for functions, for lambdas.
#define SHORTHAUL_ALWAYS __attribute__((always_inline))

namespace shorthaul {

// Calls body(0), body(1), ... with constants. Sums that are only ever indexed by constants are registers from
// the start; of unrolled loops g++ 12 makes registers too late, and keeps sums in memory around inner loops.
template <class Body, int... each>
static SHORTHAUL_INLINE void for_constants(const Body& body, std::integer_sequence<int, each...>) {
  (body(std::integral_constant<int, each>{}), ...);
}

template <int count, class Body>
static SHORTHAUL_INLINE void for_constants(const Body& body) {
  for_constants(body, std::make_integer_sequence<int, count>{});
}

// The sums of a tile: `rows` rows of the outputs that begin, go on and end with an image column.
template <int rows, int kernel_columns, int bundled>
struct SweepSums {
  vec of[kernel_columns][rows];

  // Outputs that begin have no more than the bias.
  SHORTHAUL_INLINE explicit SweepSums(const real* bias) {
    for_constants<kernel_columns>([&](auto column) SHORTHAUL_ALWAYS {
      for_constants<rows>([&](auto row) SHORTHAUL_ALWAYS { of[column][row] = load(bias); });
    });
  }

  // One value of each row, times the weights of every kernel column.
  template <int64_t value_step, int64_t weight_step>
  SHORTHAUL_INLINE void add(const real* values, const real* weights) {
    vec held[kernel_columns];
    for_constants<kernel_columns>([&](auto column) SHORTHAUL_ALWAYS { held[column] = load(weights + column * weight_step); });
    for_constants<rows>([&](auto row) SHORTHAUL_ALWAYS {
      const vec value = repeat<bundled>(values + row * value_step);
      for_constants<kernel_columns>([&](auto column) SHORTHAUL_ALWAYS { accumulate(of[column][row], value, held[column]); });
    });
  }

  // Outputs that are complete leave, and all others become older by a column.
  template <class Out>
  SHORTHAUL_INLINE void leave(typename Out::value* to, int64_t line_step, const real* bias) {
    for_constants<rows>([&](auto row) SHORTHAUL_ALWAYS {
      const vec complete = of[kernel_columns - 1][row];
      Out::store(to + row * line_step, bundled == 1 ? complete : separate<bundled>(complete));
      for_constants<kernel_columns - 1>([&](auto column) SHORTHAUL_ALWAYS {
        of[kernel_columns - 1 - column][row] = of[kernel_columns - 2 - column][row];
      });
      of[0][row] = load(bias);
    });
  }
};

// Adds the columns [begin, end) to outputs that are `pixel_step` and `line_step` values apart from `to` on.
// Columns before and behind are zeros, and left out. `row_step`, `tap_step`: packed rows from output row to
// output row, and from kernel row to kernel row.
template <class Out, int rows, int kernel_columns, int kernel_rows, int channels, int bundled, int row_step, int tap_step>
__attribute__((noinline)) static void sweep_columns(const real* columns, int64_t pitch, int64_t begin, int64_t end,
                                                    int64_t outputs, const real* weights, const real* bias,
                                                    typename Out::value* to, int64_t pixel_step, int64_t line_step) {
  constexpr int64_t column_weights = int64_t{kernel_rows} * channels * lanes;
  constexpr int64_t wide = int64_t{channels} * bundled;
  SweepSums<rows, kernel_columns, bundled> sums(bias);
  // What leaves before the first output is written to its place, and overwritten by it.
  const auto place = [&](int64_t pixel) { return to + (pixel > 0 ? pixel : 0) * pixel_step; };
  const real* from = columns + begin * pitch;
  for (int64_t each = begin; each < end; ++each, from += pitch) {
    const real *values = from, *of_row = weights;
    // What the column after the next has of the image, and the lines that it completes.
    constexpr int64_t line = 64 / sizeof(real), under = ((rows - 1) * row_step + (kernel_rows - 1) * tap_step + 1) * wide;
    for (int64_t at = 0; at < under; at += line) __builtin_prefetch(from + 2 * pitch + at);
    auto* later = place(each + 2 - (kernel_columns - 1));
    for (int row = 0; row < rows; ++row) __builtin_prefetch(later + row * line_step, 1);
    for (int kernel_row = 0; kernel_row < kernel_rows; ++kernel_row) {
      // Most rows of the image are those of the kernel row before. g++ must not see it: it would keep their
      // values, for which there are no registers.
      asm("" : "+r"(values));
#pragma GCC unroll 8
      for (int channel = 0; channel < channels; ++channel) {
        sums.template add<row_step * wide, column_weights>(values + channel * bundled, of_row + channel * lanes);
      }
      values += tap_step * wide;
      of_row += channels * lanes;
    }
    sums.template leave<Out>(place(each - (kernel_columns - 1)), line_step, bias);
  }
  for (int64_t pixel = end - (kernel_columns - 1); pixel < outputs; ++pixel) {
    sums.template leave<Out>(place(pixel), line_step, bias);
  }
}

template <class Value, class Activation, bool channels_last, int kernel_columns, int kernel_rows, int channels,
          int bundled, int row_step, int tap_step>
struct SweepBlock {
  using value = typename Value::value;
  static constexpr int64_t wide = int64_t{channels} * bundled;  // channels of a bundle

  const Shape& shape;
  const Sizes& sizes;
  const int64_t block_columns;
  Columns columns;
  int64_t* offsets;  // of a row's outputs from its first
  real* stage;       // [row of the tile][output][channel], where sums do not go straight to the output
  real* packed;      // [bundle][column][row][channel][group]: strips for all output rows of the block
  int64_t pitch = 0;           // values of a packed column
  int64_t begin = 0, end = 0;  // packed columns that are not zeros at the edges
  int64_t outputs = 0;         // of a row of the block
  int64_t mapped_block = -1;
  OutputRow first_row;

  template <class Workspace>
  SweepBlock(const Workspace& at, int64_t block_columns, const Shape& shape, const Sizes& sizes)
      : shape(shape), sizes(sizes), block_columns(block_columns), offsets(at.offsets), stage(at.stage), packed(at.packed),
        first_row(0, sizes) {
    columns.source = at.columns;
    for (int64_t column = 0; column < block_columns; ++column) offsets[column] = column * pixel_step();
  }

  // Values from output to output of a row.
  int64_t pixel_step() const { return sizes.step_w * (channels_last ? shape.out_channels * shape.groups : 1); }

  // Packs the image rows under output rows `rows` of one plane of outputs for some bundles: on channels-last
  // images those that share cache lines, which are gone before the next task.
  void pack(const value* input, int64_t plane, Span rows, int64_t column_block, Span bundles) {
    if (column_block != mapped_block) map_columns(column_block);
    first_row = OutputRow(plane * sizes.out_h + rows.begin, sizes);
    const int64_t used = (rows.end - rows.begin - 1) * row_step + (kernel_rows - 1) * tap_step + 1;
    // An odd number of cache lines: columns must not all start in the same set of the cache.
    constexpr int64_t line = 64 / sizeof(real);
    pitch = ((used * wide + line - 1) / line | 1) * line;
    const int64_t depth = source_index(first_row.depth * shape.stride_d - sizes.padding_d, sizes.in_d, sizes.padding_mode);
    for (int64_t row = 0; row < used; ++row) {
      const int64_t height = source_index(rows.begin * row_step + row - sizes.padding_h, sizes.in_h, sizes.padding_mode);
      const int64_t source = depth < 0 || height < 0 ? -1 : depth * sizes.in_h + height;
      real* to = packed + row * wide;
      for (int64_t bundle = bundles.begin; bundle < bundles.end; ++bundle, to += strip()) pack_row(to, input, source, bundle);
    }
  }

  // Values of a bundle's strip.
  int64_t strip() const { return columns.count * pitch; }

  // Which image column is under each packed one, and which at the edges are nothing but zeros.
  void map_columns(int64_t column_block) {
    mapped_block = column_block;
    const Span part = even_part(sizes.out_w, block_columns, column_block);
    outputs = part.end - part.begin;
    columns.fill(part.begin, outputs, shape, sizes);
    begin = 0, end = columns.count;
    while (begin < kernel_columns - 1 && columns.source[begin] < 0) ++begin;
    while (end > outputs && end > begin && columns.source[end - 1] < 0) --end;
  }

  // One row of the image, or of zeros.
  SHORTHAUL_INLINE void pack_row(real* to, const value* input, int64_t source, int64_t bundle) const {
    const int64_t all_channels = channels * shape.groups, plane = sizes.in_plane();
    if (source < 0) {
      for (int64_t column = begin; column < end; ++column) fill_zeros(to + column * pitch, wide);
      return;
    }
    if constexpr (channels_last) {
      const auto* from = input + (first_row.image * plane + source * sizes.in_w) * all_channels + bundle * wide;
      pack_row_channels_last<Widened<Value>>(to, from, columns, pitch, wide, all_channels, false);
    } else {
      const auto* from = input + (first_row.image * all_channels + bundle * wide) * plane + source * sizes.in_w;
      pack_row_contiguous<Widened<Value>>(to, from, columns, pitch, wide, plane);
    }
    if constexpr (bundled > 1) {
      for (int64_t column = begin; column < end; ++column) put_in_turn(to + column * pitch);
    }
  }

  // The channels of one group after the other, as they were packed, become the groups of one channel after the other.
  static SHORTHAUL_INLINE void put_in_turn(real* pixel) {
    if constexpr (wide == lanes) {
      store(pixel, interleave<bundled>(load(pixel)));
    } else {
      real before[wide];
      std::memcpy(before, pixel, sizeof before);
      for (int64_t each = 0; each < wide; ++each) pixel[each] = before[each % bundled * channels + each / bundled];
    }
  }

  // The outputs of `rows` rows from row `row` of the block on, from the strip at `strip`.
  template <int rows>
  void run_tile(const real* strip, int64_t row, int64_t bundle, const real* weights, const real* bias, const value* residual, value* output) const {
    static constexpr vec zeros = {};
    const int64_t out_channels = shape.out_channels * bundled, all_channels = shape.out_channels * shape.groups;
    const int64_t first_column = even_part(sizes.out_w, block_columns, mapped_block).begin;
    OutputRow place = first_row;
    place.height += row;
    const int64_t position = place.position(first_column, sizes), base = place.image * sizes.out_plane();
    const int64_t at = channels_last ? (base + position) * all_channels + bundle * out_channels
                                     : (base * all_channels) + bundle * out_channels * sizes.out_plane() + position;
    const int64_t line_step = sizes.step_h * sizes.full_w * (channels_last ? all_channels : 1);
    const auto sweep = [&](auto out, auto* to, int64_t pixel_step, int64_t row_distance) {
      sweep_columns<decltype(out), rows, kernel_columns, kernel_rows, channels, bundled, row_step, tap_step>(
          strip + row * row_step * wide, pitch, begin, end, outputs, weights,
          bias == nullptr ? reinterpret_cast<const real*>(&zeros) : bias, to, pixel_step, row_distance);
    };
    if constexpr (channels_last && is_short<Activation>) {
      if (residual == nullptr && out_channels == lanes) {
        return sweep(Activated<Value, Activation>{}, output + at, pixel_step(), line_step);
      }
    }
    sweep(AsReal{}, stage, lanes, block_columns * lanes);
    for (int each = 0; each < rows; ++each) finish_row(each, at + each * line_step, residual, output);
  }

  // Residual, activation and store of one row of a tile, whose first value is at `at`.
  void finish_row(int row, int64_t at, const value* residual, value* output) const {
    const real* sums = stage + row * block_columns * lanes;
    const auto sums_of = [sums](int64_t pixel) { return sums + pixel * lanes; };
    if constexpr (channels_last) {
      for (int64_t pixel = 0; pixel < outputs; ++pixel) {
        finish<Value, Activation>(output, residual, at + offsets[pixel], load(sums_of(pixel)), shape.out_channels * bundled);
      }
    } else {
      store_planes<Value, Activation>(output + at, residual == nullptr ? nullptr : residual + at, sums_of, offsets, outputs,
                                      shape.out_channels * bundled, sizes.out_plane());
    }
  }
};

}  // namespace shorthaul
