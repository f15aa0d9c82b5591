// One output row of a depthwise convolution on channels-last images: vectors of channels, read where
// they lie. Nothing is packed: each value is used by a few taps only.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"

namespace shorthaul {

// How a tile reads: whole windows inside the image, columns looked up, or also some channels missing.
enum class Reading { inner, edge, partial };

template <class Value>
struct DepthwiseRow {
  using value = typename Value::value;

  const Shape& shape;
  const Sizes& sizes;
  const value** rows;  // under each window row; null where it is padding of zeros
  Columns columns;
  const int64_t channels, padded_channels;

  template <class Workspace>
  DepthwiseRow(const Workspace& at, const Shape& shape, const Sizes& sizes)
      : shape(shape),
        sizes(sizes),
        rows(at.rows),
        channels(shape.groups),
        padded_channels((shape.groups + lanes - 1) / lanes * lanes) {
    columns.source = at.columns;
    columns.count = (sizes.out_w - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1;
    for (int64_t column = 0; column < columns.count; ++column) {
      columns.source[column] =
          int32_t(source_index(column - sizes.padding_w, sizes.in_w, sizes.padding_mode));
    }
  }

  void find_rows(const value* input, const OutputRow& row) {
    for (int64_t each = 0; each < shape.window_rows(); ++each) {
      const int64_t source = source_row(row, each, shape, sizes);
      rows[each] = source < 0 ? nullptr
                              : input + (row.image * sizes.in_plane() + source * sizes.in_w) * channels;
    }
  }

  // Whether all windows of `count` outputs from `column` on lie inside the image.
  bool is_inner(int64_t column, int64_t count) const {
    const int64_t first = column * shape.stride_w - sizes.padding_w;
    const int64_t last = (column + count - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w - sizes.padding_w;
    return first >= 0 && last < sizes.in_w;
  }

  // Sums of `pixels` neighboring outputs and `vectors` vectors of channels from `channel` on, to
  // `stage`. Three versions, so that the one for inner windows has nothing but loads and FMAs.
  template <int pixels, int vectors, Reading reading>
  __attribute__((noinline)) void run_tile(real* stage, int64_t pixel_step, int64_t column, int64_t channel,
                                          const real* weights, const real* bias) const {
    vec sums[pixels][vectors];
#pragma GCC unroll 8
    for (int pixel = 0; pixel < pixels; ++pixel) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        sums[pixel][v] = bias == nullptr ? vec{} : load(bias + channel + v * lanes);
      }
    }
    const int64_t window_rows = shape.window_rows(), step = shape.stride_w * channels;
    const int64_t all_channels = channels, tap_step = padded_channels, stride = shape.stride_w;
    const real* tap = weights + channel;
    // Columns of the window, then its rows: the same order as every other kernel.
    for (int64_t kernel_column = 0; kernel_column < shape.kernel_w; ++kernel_column) {
      const int64_t first = column * stride + kernel_column * shape.dilation_w;
      const int32_t* sources = columns.source + first;
      const int64_t offset = (first - sizes.padding_w) * all_channels + channel;
      for (int64_t row = 0; row < window_rows; ++row, tap += tap_step) {
        const value* line = rows[row];
        if (line == nullptr) continue;
        vec held[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) held[v] = load(tap + v * lanes);
        const value* from = line + offset;
#pragma GCC unroll 8
        for (int pixel = 0; pixel < pixels; ++pixel) {
          if constexpr (reading == Reading::inner) {
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
              accumulate(sums[pixel][v], Value::load(from + v * lanes), held[v]);
            }
            from += step;
          } else {
            const int64_t source = sources[pixel * stride];
            if (source < 0) continue;
            from = line + source * all_channels + channel;
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
              const vec here = reading == Reading::edge
                                   ? Value::load(from + v * lanes)
                                   : load_part<Value>(from + v * lanes, all_channels - channel - v * lanes);
              accumulate(sums[pixel][v], here, held[v]);
            }
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int pixel = 0; pixel < pixels; ++pixel) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) store(stage + pixel * pixel_step + v * lanes, sums[pixel][v]);
    }
  }

  // The gradient of `taps` neighboring weights of one window row, from the outputs of one row: each
  // is summed by itself and then added to its total at `totals`, `total_step` apart.
  template <int taps, int vectors, bool is_partial>
  __attribute__((noinline)) void sum_taps(real* totals, int64_t total_step, const value* gradient,
                                          const value* line, int64_t first_tap,
                                          int64_t channel) const {
    vec sums[taps][vectors] = {};
    const int64_t all_channels = channels, present = channels - channel;
    const int64_t stride = shape.stride_w, dilation = shape.dilation_w;
    const int64_t gradient_step = sizes.step_w * all_channels;
    const int32_t* sources = columns.source + first_tap * dilation;
    for (int64_t column = 0; column < sizes.out_w; ++column, sources += stride, gradient += gradient_step) {
      vec held[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        held[v] = is_partial ? load_part<Value>(gradient, present) : Value::load(gradient + v * lanes);
      }
#pragma GCC unroll 8
      for (int tap = 0; tap < taps; ++tap) {
        const int64_t source = sources[tap * dilation];
        if (source < 0) continue;
        const value* from = line + source * all_channels + channel;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const vec here = is_partial ? load_part<Value>(from, present) : Value::load(from + v * lanes);
          accumulate(sums[tap][v], here, held[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int tap = 0; tap < taps; ++tap) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        real* total = totals + tap * total_step + v * lanes;
        store(total, load(total) + sums[tap][v]);
      }
    }
  }

  // Residual, activation and store of one tile, whose first output value is at `at`.
  template <class Activation>
  void finish_tile(value* output, const value* residual, int64_t at, const real* stage,
                   int64_t pixels, int64_t vectors, int64_t channel) const {
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t v = 0; v < vectors; ++v) {
        finish<Value, Activation>(output, residual, at + pixel * sizes.step_w * channels + channel + v * lanes,
                                  load(stage + (pixel * vectors + v) * lanes), channels - channel - v * lanes);
      }
    }
  }
};

}  // namespace shorthaul
