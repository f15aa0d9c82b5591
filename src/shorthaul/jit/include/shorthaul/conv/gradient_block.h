// A block of output pixels for the gradient of the weights: the packed windows of some channels, and
// the output gradient of one panel of output channels.
#pragma once

#include "shorthaul/conv/packing.h"
#include "shorthaul/conv/tile.h"
#include "shorthaul/conv/output.h"

namespace shorthaul {

template <class Value, bool channels_last>
struct GradientBlock {
  using value = typename Value::value;

  const int64_t block_rows, block_columns, first_channel, channels;
  const int64_t pitch;  // values between packed columns: an odd number of cache lines, so that the
                        // same value of many windows does not fall into few sets of the cache
  real* strips;
  real* gradients;          // [pixel][channel of the panel]
  int64_t* window_offsets;  // of each pixel, in `strips`
  int64_t* output_offsets;  // of each pixel's first channel, in the output gradient
  Columns columns;
  int64_t pixels = 0;

  // Carves one thread's workspace; the plan in Python adds up the same sizes.
  GradientBlock(uint8_t* memory, int64_t panel, int64_t block_rows, int64_t block_columns,
                int64_t first_channel, int64_t channels, const Shape& shape)
      : block_rows(block_rows),
        block_columns(block_columns),
        first_channel(first_channel),
        channels(channels),
        pitch(odd_lines(shape.window_rows() * channels)) {
    const int64_t capacity = block_rows * block_columns + lanes;
    const auto take = [&](int64_t bytes) {
      uint8_t* taken = memory;
      memory += (bytes + 63) / 64 * 64;
      return taken;
    };
    window_offsets = reinterpret_cast<int64_t*>(take(capacity * sizeof(int64_t)));
    output_offsets = reinterpret_cast<int64_t*>(take(capacity * sizeof(int64_t)));
    gradients = reinterpret_cast<real*>(take(capacity * panel * sizeof(real)));
    columns.source = reinterpret_cast<int32_t*>(take(shape.columns(block_columns) * sizeof(int32_t)));
    strips = reinterpret_cast<real*>(memory);
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
    columns.fill(first_column, outputs, shape, sizes);
    pixels = 0;
    for (int64_t each = 0; each < rows; ++each) {
      const OutputRow row(first_row + each, sizes);
      const int64_t window = each * columns.count * pitch;
      pack_strip<Widened<Value>, channels_last>(strips + window, input, row, columns, first_channel,
                                       channels, pitch, shape, sizes);
      const int64_t image = row.image * sizes.out_plane();
      for (int64_t column = 0; column < outputs; ++column, ++pixels) {
        window_offsets[pixels] = window + column * shape.column_step() * pitch;
        const int64_t position = row.position(first_column + column, sizes);
        output_offsets[pixels] =
            channels_last ? (image + position) * all_outputs : image * all_outputs + position;
      }
    }
  }

  // The output gradient of `present` channels from `channel` on, `wide` values per pixel.
  void pack_gradients(const value* gradient, int64_t channel, int64_t present, int64_t wide,
                      int64_t plane) {
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
            block[row] = load_part<Value>(
                gradient + output_offsets[pixel] + (channel + lane + row) * plane, run);
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
    const real* from = strips + window_value;
    const real* gradient = gradients;
    const int64_t* offset = window_offsets;
    for (int64_t left = pixels; left > 0; --left) {
      const real* window = from + *offset++;
      vec held[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) held[v] = load(gradient + v * lanes);
      gradient += vectors * lanes;
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
