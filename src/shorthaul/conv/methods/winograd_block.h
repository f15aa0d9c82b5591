// A block of output rows by row-wise Winograd: `outputs` neighbors from `outputs` + 2 products.
//
// Each image row under the block is transformed once, tile by tile of `outputs` + 2 columns. The
// transformed rows lie as [point][tile][row][channel], so that the window of a tile is one run of
// kernel height times channels values, and windows of neighboring rows overlap: the products of a point
// are the same overlapping-rows GEMM as in window order.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"
#include "shorthaul/conv/methods/tile.h"

namespace shorthaul {

template <int outputs>
struct Winograd;

// F(4, 3): interpolation at 0, 1, -1, 2, -2 and infinity.
template <>
struct Winograd<4> {
  static constexpr int points = 6;
  static SHORTHAUL_INLINE void transform(const vec (&d)[6], vec (&v)[6]) {
    const vec a = d[4] - 4 * d[2], b = d[3] - 4 * d[1], c = d[4] - d[2], e = 2 * (d[3] - d[1]);
    v[0] = 4 * d[0] - 5 * d[2] + d[4];
    v[1] = a + b;
    v[2] = a - b;
    v[3] = c + e;
    v[4] = c - e;
    v[5] = 4 * d[1] - 5 * d[3] + d[5];
  }
  static SHORTHAUL_INLINE void restore(const vec (&m)[6], vec (&o)[4]) {
    const vec a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
    o[0] = m[0] + a + c;
    o[1] = b + 2 * e;
    o[2] = a + 4 * c;
    o[3] = b + 8 * e + m[5];
  }
};

// F(2, 3): interpolation at 0, 1, -1 and infinity.
template <>
struct Winograd<2> {
  static constexpr int points = 4;
  static SHORTHAUL_INLINE void transform(const vec (&d)[4], vec (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[3] - d[1];
  }
  static SHORTHAUL_INLINE void restore(const vec (&m)[4], vec (&o)[2]) {
    o[0] = m[0] + m[1] + m[2];
    o[1] = m[1] - m[2] + m[3];
  }
};

template <class Value, bool channels_last, int outputs>
struct WinogradBlock {
  using value = typename Value::value;
  using Form = Winograd<outputs>;
  static constexpr int points = Form::points;

  const Shape& shape;
  const Sizes& sizes;
  const int64_t block_rows, block_tiles, band;
  int64_t* window_offsets;
  int64_t* output_offsets;  // of each pixel's first channel, [row][column]
  real* line;               // one image row with its padding, [column][channel]
  real* products;           // [point][window][channel of the panel]
  real* finished;           // [pixel][channel of the panel], for contiguous outputs
  real* transformed;        // [point][tile][row of the band][channel]
  Columns columns;
  int64_t rows = 0, tiles = 0, width = 0, windows = 0;

  template <class Workspace>
  WinogradBlock(const Workspace& at, int64_t block_rows, int64_t block_tiles, const Shape& shape, const Sizes& sizes)
      : shape(shape), sizes(sizes), block_rows(block_rows), block_tiles(block_tiles), band(block_rows + shape.kernel_h - 1),
        window_offsets(at.window_offsets), output_offsets(at.output_offsets), line(at.line), products(at.products),
        finished(at.finished), transformed(at.transformed) {
    columns.source = at.columns;
  }

  // Transforms the image rows under one block for one group, and notes where each output goes.
  void pack(const value* input, int64_t row_block, int64_t tile_block, int64_t group) {
    const int64_t row_blocks = (sizes.out_h + block_rows - 1) / block_rows;
    const int64_t plane = row_block / row_blocks, first_row = even_part(sizes.out_h, block_rows, row_block % row_blocks).begin;
    const int64_t first_column = tile_block * block_tiles * outputs, left = sizes.out_w - first_column;
    const int64_t channels = shape.in_channels;
    rows = even_part(sizes.out_h, block_rows, row_block % row_blocks).end - first_row;
    width = left < block_tiles * outputs ? left : block_tiles * outputs;
    tiles = (width + outputs - 1) / outputs;
    windows = rows * tiles;
    columns.fill(first_column, width, shape, sizes);
    fill_zeros(line + columns.count * channels, (tiles * outputs + 2 - columns.count) * channels);
    const OutputRow first(plane * sizes.out_h + first_row, sizes);
    for (int64_t row = 0; row < rows + shape.kernel_h - 1; ++row) {
      pack_image_row<Widened<Value>, channels_last>(line, input, first, first_row + row - sizes.padding_h, columns, group * channels, shape, sizes);
      transform_line(row);
    }
    int64_t pixel = 0;
    const int64_t image = first.image * sizes.out_plane(), all_outputs = shape.out_channels * shape.groups;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < width; ++column, ++pixel) {
        const int64_t position = OutputRow(plane * sizes.out_h + first_row + row, sizes).position(first_column + column, sizes);
        output_offsets[pixel] = channels_last ? (image + position) * all_outputs : image * all_outputs + position;
      }
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t row = 0; row < rows; ++row) window_offsets[tile * rows + row] = (tile * band + row) * channels;
    }
  }

  __attribute__((noinline)) void transform_line(int64_t row) {
    const int64_t channels = shape.in_channels, point_step = block_tiles * band * channels;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const real* from = line + tile * outputs * channels;
      real* to = transformed + (tile * band + row) * channels;
      for (int64_t channel = 0; channel < channels; channel += lanes) {
        vec image[points], changed[points];
#pragma GCC unroll 8
        for (int each = 0; each < points; ++each) image[each] = load(from + each * channels + channel);
        Form::transform(image, changed);
#pragma GCC unroll 8
        for (int each = 0; each < points; ++each) store(to + each * point_step + channel, changed[each]);
      }
    }
  }

  // One tile of one point's products over `count` values of the windows from `begin` on.
  template <int size, int vectors>
  __attribute__((noinline)) void run_tile(int64_t window, int64_t point, int64_t begin, int64_t count, const real* weights) const {
    vec sums[size][vectors];
    weights += begin * (vectors * lanes);
    real* kept = products + (point * block_rows * block_tiles + window) * (vectors * lanes);
#pragma GCC unroll 16
    for (int row = 0; row < size; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[row][v] = begin == 0 ? vec{} : load(kept + (row * vectors + v) * lanes);
    }
    const real* of_point = transformed + point * block_tiles * band * shape.in_channels + begin;
    TileWindows<size, 0> here(of_point, window_offsets + window);
    multiply(sums, here, weights, count);
#pragma GCC unroll 16
    for (int row = 0; row < size; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) store(kept + (row * vectors + v) * lanes, sums[row][v]);
    }
  }

  // From the products of a panel to its outputs.
  template <int vectors, class Activation>
  __attribute__((noinline)) void finish_panel(value* output, const value* residual, int64_t first_channel, int64_t channels,
                                              const real* bias) const {
    const int64_t point_step = block_rows * block_tiles * vectors * lanes;
    for (int64_t v = 0; v < vectors; ++v) {
      const vec added = bias == nullptr ? vec{} : load(bias + v * lanes);
      for (int64_t window = 0; window < windows; ++window) {
        vec kept[points], made[outputs];
#pragma GCC unroll 8
        for (int point = 0; point < points; ++point) kept[point] = load(products + point * point_step + (window * vectors + v) * lanes);
        Form::restore(kept, made);
        const int64_t column = window / rows * outputs, pixel = window % rows * width + column;
        const int64_t here = width - column < outputs ? width - column : outputs;
        for (int64_t each = 0; each < here; ++each) {
          if constexpr (channels_last) {
            finish<Value, Activation>(output, residual, output_offsets[pixel + each] + first_channel + v * lanes,
                                      made[each] + added, channels - v * lanes);
          } else {
            store(finished + ((pixel + each) * vectors + v) * lanes, made[each] + added);
          }
        }
      }
    }
    if constexpr (!channels_last) {
      store_planes<Value, Activation>(output + first_channel * sizes.out_plane(),
                                      residual == nullptr ? nullptr : residual + first_channel * sizes.out_plane(),
                                      [&](int64_t pixel) { return finished + pixel * vectors * lanes; },
                                      output_offsets, rows * width, channels, sizes.out_plane());
    }
  }
};

}  // namespace shorthaul
