// A block of output pixels: their packed windows, and the sums that wait between two chunks.
#pragma once

#include "shorthaul/conv/output.h"
#include "shorthaul/conv/packing.h"
#include "shorthaul/conv/tile.h"

namespace shorthaul {

static SHORTHAUL_INLINE int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Values of a window that are summed at one go.
struct Chunk {
  int64_t window_offset;  // from the window's first value
  int64_t depth;          // how many values came before
  int64_t count;
  bool is_last;
};

// Where the sums of one panel go.
template <class value>
struct Target {
  value* output;
  const value* residual;
  int64_t channel, channels;  // the panel's first output channel, and how many there are
  bool is_plain;              // neither residual nor activation
};

template <class Value, bool channels_last, bool in_place>
struct WindowBlock {
  using value = typename Value::value;

  const int64_t block_rows, block_columns;
  real* strips;
  real* stage;              // [pixel][channel of the panel]
  int64_t* window_offsets;  // of each pixel, in `strips` or in the input
  int64_t* output_offsets;  // of each pixel's first channel
  Columns columns;
  const real* windows = nullptr;
  int64_t pixels = 0;

  // Carves one thread's workspace; `workspace_bytes` in Python adds up the same sizes.
  WindowBlock(uint8_t* memory, int64_t panel, int64_t block_rows, int64_t block_columns,
              const Shape& shape)
      : block_rows(block_rows), block_columns(block_columns) {
    const int64_t capacity = block_rows * block_columns + lanes;
    const auto take = [&](int64_t bytes) {
      uint8_t* taken = memory;
      memory += round_up(bytes, 64);
      return taken;
    };
    window_offsets = reinterpret_cast<int64_t*>(take(capacity * sizeof(int64_t)));
    output_offsets = reinterpret_cast<int64_t*>(take(capacity * sizeof(int64_t)));
    stage = reinterpret_cast<real*>(take(capacity * panel * sizeof(real)));
    columns.source = reinterpret_cast<int32_t*>(take(shape.columns(block_columns) * sizeof(int32_t)));
    strips = reinterpret_cast<real*>(memory);
  }

  // Packs the windows of one block for one group, and notes where each pixel's output goes.
  void pack(const value* input, int64_t row_block, int64_t column_block, int64_t group,
            const Shape& shape, const Sizes& sizes) {
    const int64_t first_column = column_block * block_columns;
    const int64_t outputs =
        sizes.out_w - first_column < block_columns ? sizes.out_w - first_column : block_columns;
    const int64_t first_row = row_block * block_rows;
    const int64_t rows =
        sizes.rows() - first_row < block_rows ? sizes.rows() - first_row : block_rows;
    const int64_t all_inputs = shape.in_channels * shape.groups;
    const int64_t all_outputs = shape.out_channels * shape.groups;
    if (!in_place) columns.fill(first_column, outputs, shape, sizes);
    pixels = 0;
    for (int64_t each = 0; each < rows; ++each) {
      const OutputRow row(first_row + each, sizes);
      int64_t window, window_step;
      if constexpr (in_place) {
        const int64_t at = row.image * sizes.in_plane() +
                           source_row(row, 0, shape, sizes) * sizes.in_w +
                           first_column * shape.stride_w;
        window = at * all_inputs + group * shape.in_channels;
        window_step = shape.stride_w * all_inputs;
      } else {
        window = each * columns.count * shape.column_values();
        window_step = shape.column_step() * shape.column_values();
        pack_strip<Value, channels_last>(strips + window, input, row, columns,
                                         group * shape.in_channels, shape.in_channels,
                                         shape.column_values(), shape, sizes);
      }
      const int64_t image = row.image * sizes.out_plane();
      for (int64_t column = 0; column < outputs; ++column, ++pixels) {
        window_offsets[pixels] = window + column * window_step;
        const int64_t position = row.position(first_column + column, sizes);
        output_offsets[pixels] =
            channels_last ? (image + position) * all_outputs : image * all_outputs + position;
      }
    }
    if constexpr (in_place) {
      windows = reinterpret_cast<const real*>(input);
    } else {
      windows = strips;
    }
  }

  // Calls body(chunk) for each chunk of the window.
  // A window is one run of values, unless dilation or other groups' channels lie in between.
  template <class Body>
  SHORTHAUL_INLINE void for_each_chunk(int64_t chunk, const Shape& shape, const Body& body) const {
    const bool is_whole = shape.dilation_w == 1 && !(in_place && shape.groups > 1);
    const int64_t runs = is_whole ? 1 : shape.kernel_w;
    const int64_t length = is_whole ? shape.window_values() : shape.column_values();
    const int64_t run_step =
        shape.dilation_w * shape.column_values() * (in_place ? shape.groups : 1);
    for (int64_t run = 0; run < runs; ++run) {
      for (int64_t begin = 0; begin < length; begin += chunk) {
        const int64_t count = length - begin < chunk ? length - begin : chunk;
        body(Chunk{run * run_step + begin, run * length + begin, count,
                   run + 1 == runs && begin + count == length});
      }
    }
  }

  // One tile over one chunk: sums come from the bias or the stage, and go to the stage or, on the
  // last chunk of a channels-last output, out. Not inlined: in a function of its own the sums get
  // all the registers.
  template <int rows, int vectors, class Activation>
  __attribute__((noinline)) void run_tile(int64_t pixel, const Chunk& chunk, const real* weights,
                                          const real* bias, const Target<value>& target) const {
    vec sums[rows][vectors];
    const bool starts_at_zero = chunk.depth == 0 && bias == nullptr;
    const real* begin = chunk.depth == 0 ? bias : stage + pixel * (vectors * lanes);
    const int64_t begin_step = chunk.depth == 0 ? 0 : vectors * lanes;
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        sums[row][v] = starts_at_zero ? vec{} : load(begin + row * begin_step + v * lanes);
      }
    }
    const real* here[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
      here[row] = windows + window_offsets[pixel + row] + chunk.window_offset;
    }
    multiply<rows, vectors>(sums, here, weights + chunk.depth * (vectors * lanes), chunk.count);
    if (channels_last && chunk.is_last && target.is_plain && target.channels == vectors * lanes) {
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
          Value::store(target.output + output_offsets[pixel + row] + target.channel + v * lanes,
                       sums[row][v]);
        }
      }
      return;
    }
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        store(stage + ((pixel + row) * vectors + v) * lanes, sums[row][v]);
      }
    }
    if (channels_last && chunk.is_last) {
      finish_rows<Activation>(pixel, rows, vectors * lanes, target);
    }
  }

  // What is more than storing: an activation, a residual, a panel that is not full.
  template <class Activation>
  __attribute__((noinline)) void finish_rows(int64_t pixel, int64_t rows, int64_t pitch,
                                             const Target<value>& target) const {
    for (int64_t row = pixel; row < pixel + rows; ++row) {
      for (int64_t channel = 0; channel < target.channels; channel += lanes) {
        finish<Value, Activation>(target.output, target.residual,
                                  output_offsets[row] + target.channel + channel,
                                  load(stage + row * pitch + channel), target.channels - channel);
      }
    }
  }
};

}  // namespace shorthaul
