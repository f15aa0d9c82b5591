// Depthwise convolutions whose kernels are many rows high: one vector of channels at a time.
//
// The rows of an image that lie under a block of outputs are packed as [row][column][channel], so that
// neighboring pixels are neighbors in memory, whatever the number of channels. A register tile is some
// output rows high: every image row is loaded once per kernel column for all outputs that it touches.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"

namespace shorthaul {

// What a register tile reads, besides where: image rows and kernel columns that add more than zeros.
struct TallWindow {
  Span lines;    // of the image rows under the tile, counted from its first
  Span columns;  // of the kernel
  int64_t kernel_h, row_step, pixel_step, column_step;
};

template <int count>
using Counted = std::make_integer_sequence<int, count>;

// Loops over sums are written out by templates of plain functions: g++ 12 unrolls nested loops, and sees
// through lambdas, too late to keep the sums that they go over in registers.
template <int row, int rows, int pixels, int... pixel>
static SHORTHAUL_INLINE void add_weight(vec (&sums)[rows][pixels], const vec (&image)[pixels], vec weight,
                                        std::integer_sequence<int, pixel...>) {
  (accumulate(sums[row][pixel], image[pixel], weight), ...);
}

template <int low, int rows, int pixels, int... row>
static SHORTHAUL_INLINE void add_line(vec (&sums)[rows][pixels], const vec (&image)[pixels], const real* tap,
                                      std::integer_sequence<int, row...>) {
  (add_weight<low + row>(sums, image, load(tap - (low + row) * lanes), Counted<pixels>{}), ...);
}

template <int pixels, int... pixel>
static SHORTHAUL_INLINE void load_line(vec (&image)[pixels], const real* from, int64_t step, std::integer_sequence<int, pixel...>) {
  ((image[pixel] = load(from + pixel * step)), ...);
}

template <int rows, int pixels, int... each>
static SHORTHAUL_INLINE void start_sums(vec (&sums)[rows][pixels], vec begin, std::integer_sequence<int, each...>) {
  ((sums[each / pixels][each % pixels] = begin), ...);
}

template <int rows, int pixels, int... each>
static SHORTHAUL_INLINE void store_sums(real* to, int64_t step, const vec (&sums)[rows][pixels], std::integer_sequence<int, each...>) {
  (store(to + each / pixels * step + each % pixels * lanes, sums[each / pixels][each % pixels]), ...);
}

// The next image rows, up to row `end`, into output rows `low` to `high` of the tile. `tap` is the weight
// of the image row in output row 0; the output row below sees it one kernel row earlier.
template <int low, int high, int rows, int pixels>
static SHORTHAUL_INLINE void add_lines(vec (&sums)[rows][pixels], const real*& from, const real*& tap,
                                       int64_t& line, int64_t end, int64_t row_step, int64_t pixel_step) {
#pragma GCC unroll 1
  for (; line < end; ++line, from += row_step, tap += lanes) {
    vec image[pixels];
    // Left to see that the next row needs the same weights, g++ keeps them in the registers of the sums.
    asm("" : "+r"(tap));
    load_line(image, from, pixel_step, Counted<pixels>{});
    add_line<low>(sums, image, tap, Counted<high - low>{});
  }
}

// One kernel column: first image rows that lie under the upper outputs only, one more output each, then
// those under all of them, then those under the lower ones only. Every output has its rows in order.
template <int rows, int pixels, int stage = 0>
static SHORTHAUL_INLINE void add_column(vec (&sums)[rows][pixels], const real* from, const real* tap,
                                        int64_t line, const TallWindow& window) {
  if constexpr (stage < 2 * rows - 1) {
    constexpr int low = stage < rows ? 0 : stage - rows + 1, high = stage < rows ? stage + 1 : rows;
    const int64_t end = stage < rows - 1 ? stage + 1 : window.kernel_h + low;
    add_lines<low, high>(sums, from, tap, line, std::min(end, window.lines.end), window.row_step, window.pixel_step);
    add_column<rows, pixels, stage + 1>(sums, from, tap, line, window);
  }
}

// Sums of `rows` x `pixels` outputs whose windows start at `image`, to `stage`.
template <int rows, int pixels>
__attribute__((noinline)) static void run_tall_tile(real* stage, int64_t stage_step, const real* image, const real* weights,
                                                    const real* bias, TallWindow window) {
  vec sums[rows][pixels];
  const vec begin = bias == nullptr ? vec{} : load(bias);
  start_sums(sums, begin, Counted<rows * pixels>{});
  const real* from = image + window.lines.begin * window.row_step + window.columns.begin * window.column_step;
  const real* tap = weights + (window.columns.begin * window.kernel_h + window.lines.begin) * lanes;
#pragma GCC unroll 1
  for (int64_t column = window.columns.begin; column < window.columns.end; ++column) {
    add_column<rows, pixels>(sums, from, tap, window.lines.begin, window);
    from += window.column_step;
    tap += window.kernel_h * lanes;
  }
  store_sums(stage, stage_step, sums, Counted<rows * pixels>{});
}

// A block of outputs of one vector of channels. Kernels are at least as high as a tile.
template <class Value, class Activation, bool channels_last, int tile_rows, int tile_pixels>
struct TallBlock {
  using value = typename Value::value;

  const Shape& shape;
  const Sizes& sizes;
  Columns columns;
  int64_t* offsets;  // of a row's outputs, where those are contiguous
  real* stage;       // sums of one row of tiles: [row][column][channel]
  real* band;        // packed image rows
  int64_t pitch;     // of the band's rows
  int64_t image, depth, channel, present;
  Span rows, width;  // of the outputs
  Span inside;       // the band's rows that are more than zeros

  template <class Workspace>
  TallBlock(const Workspace& at, int64_t block_columns, const Shape& shape, const Sizes& sizes)
      : shape(shape), sizes(sizes), offsets(at.offsets), stage(at.stage), band(at.band) {
    columns.source = at.columns;
    const int64_t count = shape.columns(block_columns), line = 64 / sizeof(real);
    // An odd number of cache lines: the rows of a column spread over all sets of the first-level cache.
    pitch = ((count * lanes + line - 1) / line | 1) * line;
  }

  // Packs the image rows under the block; those of zeros are left out, because tiles skip them.
  void pack(const value* input, int64_t plane, int64_t vector, Span of_rows, Span of_columns) {
    image = plane / sizes.out_d;
    depth = plane % sizes.out_d;
    channel = vector * lanes;
    present = std::min<int64_t>(lanes, shape.groups - channel);
    rows = of_rows;
    width = of_columns;
    columns.fill(width.begin, width.end - width.begin, shape, sizes);
    const int64_t top = rows.begin - sizes.padding_h, count = rows.end - rows.begin + shape.kernel_h - 1;
    const int64_t source_depth = source_index(depth * shape.stride_d - sizes.padding_d, sizes.in_d, sizes.padding_mode);
    inside = {0, count};
    if (sizes.padding_mode == zeros) inside = {std::max<int64_t>(0, -top), std::min(count, sizes.in_h - top)};
    if (source_depth < 0) inside.end = inside.begin;
    for (int64_t each = inside.begin; each < inside.end; ++each) {
      const int64_t line = source_depth * sizes.in_h + source_index(top + each, sizes.in_h, sizes.padding_mode);
      real* to = band + each * pitch;
      if (present == lanes) {
        pack_row(to, input, line, lanes);
      } else {
        // What lies past the last channel is multiplied, but never stored: it only must not be slow.
        fill_zeros(to, columns.count * lanes);
        pack_row(to, input, line, present);
      }
    }
  }

  SHORTHAUL_INLINE void pack_row(real* to, const value* input, int64_t line, int64_t count) const {
    const int64_t plane = sizes.in_plane();
    if constexpr (channels_last) {
      const value* from = input + (image * plane + line * sizes.in_w) * shape.groups + channel;
      pack_row_channels_last<Widened<Value>>(to, from, columns, lanes, count, shape.groups, false);
    } else {
      const value* from = input + (image * shape.groups + channel) * plane + line * sizes.in_w;
      pack_row_contiguous<Widened<Value>>(to, from, columns, lanes, count, plane);
    }
  }

  // One tile, whose outputs start at `row` and `column` of the block.
  template <int tile_height, int tile_width>
  void run_tile(int64_t row, int64_t column, const real* weights, const real* bias) const {
    const int64_t step = shape.column_step(), dilation = shape.dilation_w;
    Span taps{0, shape.kernel_w};
    if (sizes.padding_mode == zeros && !shape.skips_columns()) {
      // Kernel columns in which no output of the tile sees the image add nothing.
      const int64_t before = columns.inner_begin - (column + tile_width - 1) * step, until = columns.inner_end - column * step;
      taps.begin = std::min(shape.kernel_w, std::max<int64_t>(0, before + dilation - 1) / dilation);
      taps.end = std::min(shape.kernel_w, std::max<int64_t>(0, until + dilation - 1) / dilation);
    }
    const Span lines{std::max<int64_t>(0, inside.begin - row), std::min(tile_height + shape.kernel_h - 1, inside.end - row)};
    const int64_t across = width.end - width.begin;
    run_tall_tile<tile_height, tile_width>(
        stage + column * lanes, across * lanes, band + row * pitch + column * step * lanes, weights, bias,
        {lines, taps, shape.kernel_h, pitch, step * lanes, dilation * lanes});
  }

  // Residual, activation and store of `count` rows of outputs from row `first` of the block on.
  void finish_rows(value* output, const value* residual, int64_t first, int64_t count) const {
    const int64_t plane = sizes.out_plane(), across = width.end - width.begin;
    for (int64_t row = 0; row < count; ++row) {
      const OutputRow place(rows.begin + first + row + (depth + image * sizes.out_d) * sizes.out_h, sizes);
      const int64_t at = place.position(width.begin, sizes);
      const real* sums = stage + row * across * lanes;
      if constexpr (channels_last) {
        for (int64_t column = 0; column < across; ++column) {
          const int64_t here = (image * plane + at + column * sizes.step_w) * shape.groups + channel;
          finish<Value, Activation>(output, residual, here, load(sums + column * lanes), present);
        }
      } else {
        for (int64_t column = 0; column < across; ++column) {
          offsets[column] = (image * shape.groups + channel) * plane + at + column * sizes.step_w;
        }
        store_planes<Value, Activation>(
            output, residual, [&](int64_t pixel) { return sums + pixel * lanes; }, offsets, across, present, plane);
      }
    }
  }

  // The whole block, tile by tile.
  void run(const real* weights, const real* bias, const value* residual, value* output) const {
    balanced_tiles(rows.end - rows.begin, tile_rows, [&](int64_t row, int64_t count) {
      with_constant<tile_rows>(count, [&](auto height) {
        balanced_tiles(width.end - width.begin, tile_pixels, [&](int64_t column, int64_t size) {
          with_constant<tile_pixels>(size, [&](auto pixels) { run_tile<height, pixels>(row, column, weights, bias); });
        });
      });
      finish_rows(output, residual, row, count);
    });
  }
};

}  // namespace shorthaul
