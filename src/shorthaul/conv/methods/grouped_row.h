// One output row of a convolution in small groups on channels-last images: a vector of output channels
// holds whole groups, so every lane works, and images are read where they lie.
#pragma once

#include "shorthaul/conv/methods/output.h"

namespace shorthaul {

// Lane by lane, channel `which` of the lane's own group.
template <int per_group, int which, int... lane>
static SHORTHAUL_INLINE vec spread(vec image, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(image, image, (lane / per_group * per_group + which)...);
}

// sum += image channel * weights, for the channels of a group in order.
template <int per_group, int channel = 0>
static SHORTHAUL_INLINE void add_group(vec& sum, vec image, const vec (&weights)[per_group]) {
  if constexpr (channel < per_group) {
    accumulate(sum, spread<per_group, channel>(image, std::make_integer_sequence<int, lanes>{}), weights[channel]);
    add_group<per_group, channel + 1>(sum, image, weights);
  }
}

template <class Value, class Activation, int per_group, int64_t channels, int64_t stride_w>
struct GroupedRow {
  using value = typename Value::value;

  const Shape& shape;
  const Sizes& sizes;
  const value** lines;  // under each window row that is not padding of zeros
  int64_t* taps;        // where the weights of each such row are, for kernel column 0
  int64_t* columns;     // offset of the image column under each window column; -1 for zeros
  int64_t present = 0;

  template <class Workspace>
  GroupedRow(const Workspace& at, const Shape& shape, const Sizes& sizes)
      : shape(shape),
        sizes(sizes),
        lines(at.lines),
        taps(at.taps),
        columns(at.columns) {
    const int64_t count = (sizes.out_w - 1) * stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1;
    for (int64_t column = 0; column < count; ++column) {
      const int64_t source = source_index(column - sizes.padding_w, sizes.in_w, sizes.padding_mode);
      columns[column] = source < 0 ? -1 : source * channels;
    }
  }

  void find_rows(const value* input, const OutputRow& row) {
    present = 0;
    for (int64_t each = 0; each < shape.window_rows(); ++each) {
      const int64_t source = source_row(row, each, shape, sizes);
      if (source < 0) continue;
      lines[present] = input + (row.image * sizes.in_plane() + source * sizes.in_w) * channels;
      taps[present++] = each * per_group * lanes;
    }
  }

  // `pixels` neighboring outputs of one vector of channels. At the edges there is one, whose columns are
  // looked up; inside there is no choice, so that the sums stay in registers.
  template <int pixels, bool is_inner, bool is_plain>
  __attribute__((noinline)) void run_tile(const real* weights, const vec* begin, const value* residual, value* output,
                                          int64_t column, int64_t channel, int64_t at) const {
    vec sums[pixels];
#pragma GCC unroll 16
    for (int pixel = 0; pixel < pixels; ++pixel) sums[pixel] = *begin;
    const int64_t column_weights = shape.window_rows() * per_group * lanes;
    for (int64_t kernel_column = 0; kernel_column < shape.kernel_w; ++kernel_column, weights += column_weights) {
      const int64_t source = columns[column * stride_w + kernel_column * shape.dilation_w];
      if constexpr (!is_inner) {
        if (source < 0) continue;
      }
      for (int64_t row = 0; row < present; ++row) {
        const real* of_row = weights + taps[row];
        const value* from = lines[row] + source + channel;
        if constexpr (per_group == lanes) {
          // One channel after another: eight vectors of weights beside the sums would be too many.
#pragma GCC unroll 16
          for (int each = 0; each < per_group; ++each) {
            const vec held = load(of_row + each * lanes);
#pragma GCC unroll 16
            for (int pixel = 0; pixel < pixels; ++pixel) {
              accumulate(sums[pixel], broadcast(Value::widen(from[pixel * stride_w * channels + each])), held);
            }
          }
        } else {
          vec held[per_group];
#pragma GCC unroll 16
          for (int each = 0; each < per_group; ++each) held[each] = load(of_row + each * lanes);
#pragma GCC unroll 16
          for (int pixel = 0; pixel < pixels; ++pixel) {
            const value* here = from + pixel * stride_w * channels;
            add_group<per_group>(sums[pixel], Value::load(here), held);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const int64_t to = at + pixel * sizes.step_w * channels + channel;
      if constexpr (is_plain) {
        Value::store(output + to, sums[pixel]);
      } else {
        finish<Value, Activation>(output, residual, to, sums[pixel], lanes);
      }
    }
  }
};

}  // namespace shorthaul
