// A block of output pixels for the gradient of the weights: the packed windows of some channels, and
// the output gradient of one panel of output channels.
#pragma once

#include "shorthaul/conv/methods/packing.h"
#include "shorthaul/conv/methods/tile.h"
#include "shorthaul/conv/methods/output.h"

namespace shorthaul {

// Copying a panel's gradients pays when more tiles than these read them.
constexpr int64_t few_tiles = 16;

template <class Value, bool channels_last>
struct GradientBlock {
  using value = typename Value::value;

  const int64_t block_rows, block_columns, first_channel, channels;
  const int64_t pitch;  // values between packed columns: an odd number of cache lines, so that the
                        // same value of many windows does not fall into few sets of the cache
  real* strips;
  real* gradients;            // [pixel][channel of the panel]
  int64_t* window_offsets;    // of each pixel, in `windows`
  int64_t* output_offsets;    // of each pixel's first channel, in the output gradient
  int64_t* gradient_offsets;  // of each pixel, in `gradients`
  const real* windows;        // `strips`, or the image where single values are read in place
  const real* panel_gradients;            // `gradients`, or the output gradient itself
  const int64_t* panel_gradient_offsets;  // of each pixel, in `panel_gradients`
  Columns columns;
  int64_t pixels = 0;

  template <class Workspace>
  GradientBlock(const Workspace& at, int64_t block_rows, int64_t block_columns, int64_t first_channel, int64_t channels,
                const Shape& shape)
      : block_rows(block_rows),
        block_columns(block_columns),
        first_channel(first_channel),
        channels(channels),
        pitch(odd_lines(shape.window_rows() * channels)),
        strips(at.strips),
        gradients(at.gradients),
        window_offsets(at.window_offsets),
        output_offsets(at.output_offsets),
        gradient_offsets(at.gradient_offsets) {
    columns.source = at.columns;
  }

  // Whether the values of 1x1 windows are read where they lie: none in padding, and not so far apart that
  // those of a block's pixels fall into few sets of the first-level cache (see `pitch`).
  static bool can_read_windows(const Shape& shape, const Sizes& sizes) {
    const auto is_inside = [](int64_t padding, int64_t outputs, int64_t stride, int64_t size) {
      return padding == 0 && (outputs - 1) * stride < size;
    };
    const int64_t step = shape.in_channels * shape.groups * shape.stride_w * static_cast<int64_t>(sizeof(real));
    return channels_last && Value::is_real && shape.window_values() == shape.in_channels && step % 256 != 0 &&
           is_inside(sizes.padding_d, sizes.out_d, shape.stride_d, sizes.in_d) &&
           is_inside(sizes.padding_h, sizes.out_h, shape.stride_h, sizes.in_h) &&
           is_inside(sizes.padding_w, sizes.out_w, shape.stride_w, sizes.in_w);
  }

  static int64_t odd_lines(int64_t values) {
    constexpr int64_t line = 64 / sizeof(real);
    return ((values + line - 1) / line | 1) * line;
  }

  void pack_windows(const value* input, int64_t row_block, int64_t column_block,
                    const Shape& shape, const Sizes& sizes) {
    const int64_t first_column = column_block * block_columns;
    const int64_t outputs =
        sizes.out_w - first_column < block_columns ? sizes.out_w - first_column : block_columns;
    const int64_t first_row = row_block * block_rows;
    const int64_t rows =
        sizes.rows() - first_row < block_rows ? sizes.rows() - first_row : block_rows;
    const int64_t all_outputs = shape.out_channels * shape.groups;
    const bool is_in_place = can_read_windows(shape, sizes);
    const int64_t all_inputs = shape.in_channels * shape.groups;
    windows = strips;
    if constexpr (Value::is_real) {
      if (is_in_place) windows = input + first_channel;
    }
    columns.fill(first_column, outputs, shape, sizes);
    pixels = 0;
    for (int64_t each = 0; each < rows; ++each) {
      const OutputRow row(first_row + each, sizes);
      int64_t window = each * columns.count * pitch, step = shape.column_step() * pitch;
      if (is_in_place) {
        const int64_t line = row.image * sizes.in_d * sizes.in_h + source_row(row, 0, shape, sizes);
        step = shape.stride_w * all_inputs;
        window = line * sizes.in_w * all_inputs + first_column * step;
      } else {
        pack_strip<Widened<Value>, channels_last>(strips + window, input, row, columns, first_channel,
                                         channels, pitch, shape, sizes);
      }
      const int64_t image = row.image * sizes.out_plane();
      for (int64_t column = 0; column < outputs; ++column, ++pixels) {
        window_offsets[pixels] = window + column * step;
        const int64_t position = row.position(first_column + column, sizes);
        output_offsets[pixels] =
            channels_last ? (image + position) * all_outputs : image * all_outputs + position;
      }
    }
  }

  // The output gradient of `present` channels from `channel` on, `wide` values per pixel. Whole vectors that
  // few tiles use are read where they lie.
  void pack_gradients(const value* gradient, int64_t channel, int64_t present, int64_t wide,
                      int64_t plane, int64_t tiles) {
    if constexpr (channels_last && Value::is_real) {
      if (present == wide && tiles <= few_tiles) {
        panel_gradients = gradient + channel;
        panel_gradient_offsets = output_offsets;
        return;
      }
    }
    panel_gradients = gradients;
    panel_gradient_offsets = gradient_offsets;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) gradient_offsets[pixel] = pixel * wide;
    if constexpr (channels_last) {
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        const value* from = gradient + output_offsets[pixel] + channel;
        for (int64_t lane = 0; lane < wide; lane += lanes) {
          store(gradients + pixel * wide + lane, load_part<Value>(from + lane, present - lane));
        }
      }
    } else {
      for (int64_t pixel = 0; pixel < pixels;) {
        int64_t run = 1;
        while (run < lanes && pixel + run < pixels &&
               output_offsets[pixel + run] == output_offsets[pixel] + run) {
          ++run;
        }
        for (int64_t lane = 0; lane < wide; lane += lanes) {
          vec block[lanes] = {};
          for (int64_t row = 0; row < lanes && lane + row < present; ++row) {
            const value* from = gradient + output_offsets[pixel] + (channel + lane + row) * plane;
            // More planes than the processor fetches ahead from by itself.
            __builtin_prefetch(from + 4 * lanes);
            block[row] = load_part<Value>(from, run);
          }
          transpose(block);
          for (int64_t row = 0; row < run; ++row) {
            store(gradients + (pixel + row) * wide + lane, block[row]);
          }
        }
        pixel += run;
      }
    }
  }

  // weights[row] += window value `row` of each pixel * gradients of that pixel, pixels in order; the first
  // block is stored, not added. A block is summed by itself first: the error then grows with the root of
  // its pixels, not of all.
  template <int rows, int vectors, bool is_first>
  __attribute__((noinline)) void run_tile(real* weights, int64_t window_value) const {
    vec sums[rows][vectors];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[row][v] = vec{};
    }
    const real* from = windows + window_value;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      const real* window = from + window_offsets[pixel];
      const real* gradient = panel_gradients + panel_gradient_offsets[pixel];
      vec held[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) held[v] = load(gradient + v * lanes);
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
        const vec value = broadcast(window[row]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) accumulate(sums[row][v], value, held[v]);
      }
    }
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        real* sum = weights + (row * vectors + v) * lanes;
        store(sum, is_first ? sums[row][v] : load(sum) + sums[row][v]);
      }
    }
  }
};

}  // namespace shorthaul
