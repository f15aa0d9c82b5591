// A block of output rows of one image, for kernels that are vectorized over the width.
//
// Every channel's image rows are packed as planes. With a stride of s, each row is packed as s phases
// (columns 0, s, 2s, ..., then 1, s+1, ...), so that the values under one tap of neighboring outputs
// are neighbors.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"

namespace shorthaul {

struct PlanarLayout {
  int64_t phases, pitch, band_rows, plane;

  PlanarLayout(int64_t block_rows, int64_t block_columns, const Shape& shape) {
    const int64_t reach = (shape.kernel_w - 1) * shape.dilation_w + 1;
    phases = reach < shape.stride_w ? reach : shape.stride_w;
    const int64_t padded = (block_columns + lanes - 1) / lanes * lanes;
    pitch = (padded + (reach - 1) / shape.stride_w + lanes - 1) / lanes * lanes;
    band_rows = (block_rows - 1) * shape.stride_h + (shape.kernel_h - 1) * shape.dilation_h + 1;
    // An odd number of cache lines: planes must not all start in the same set of the cache.
    constexpr int64_t line = 64 / sizeof(real);
    plane = ((shape.kernel_d * band_rows * phases * pitch + line - 1) / line | 1) * line;
  }
};

// The columns of a packed row that have a value of the image, and of these the most that run side by side.
struct PlanarStretch {
  int64_t first, last, begin, end;  // [first, last), [begin, end)
};

constexpr int64_t small_bytes = 24 * 1024;  // of a first-level cache of 32 KiB

template <class Value, bool channels_last>
struct PlanarBlock {
  using value = typename Value::value;

  const PlanarLayout layout;
  const int64_t block_rows, block_columns;
  int64_t* tap_offsets;
  int32_t* column_sources;  // [phase][pitch]
  PlanarStretch* stretches;       // [phase]
  real* planes;
  int64_t image = 0, depth = 0, first_row = 0, rows = 0, first_column = 0, columns = 0;
  int64_t mapped_block = -1;

  template <class Workspace>
  PlanarBlock(const Workspace& at, int64_t block_rows, int64_t block_columns, const Shape& shape)
      : layout(block_rows, block_columns, shape),
        block_rows(block_rows),
        block_columns(block_columns),
        tap_offsets(at.tap_offsets),
        column_sources(at.column_sources),
        stretches(at.stretches),
        planes(at.planes) {
    const int64_t taps = shape.window_rows() * shape.kernel_w;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t column = tap / shape.window_rows() * shape.dilation_w;
      const int64_t row = tap % shape.window_rows();
      const int64_t band = row / shape.kernel_h * layout.band_rows + row % shape.kernel_h * shape.dilation_h;
      tap_offsets[tap] = (band * layout.phases + column % shape.stride_w) * layout.pitch + column / shape.stride_w;
    }
  }

  // Packs the rows of one block for one group.
  void pack(const value* input, int64_t row_block, int64_t column_block, int64_t group,
            const Shape& shape, const Sizes& sizes) {
    const int64_t row_blocks = (sizes.out_h + block_rows - 1) / block_rows;
    image = row_block / row_blocks / sizes.out_d;
    depth = row_block / row_blocks % sizes.out_d;
    const Span part = even_part(sizes.out_h, block_rows, row_block % row_blocks);
    first_row = part.begin, rows = part.end - part.begin;
    first_column = column_block * block_columns;
    columns = sizes.out_w - first_column < block_columns ? sizes.out_w - first_column : block_columns;
    if (column_block != mapped_block) {
      mapped_block = column_block;
      map_columns(shape, sizes);
    }
    const int64_t used_rows = (rows - 1) * shape.stride_h + (shape.kernel_h - 1) * shape.dilation_h + 1;
    const int64_t all_channels = shape.in_channels * shape.groups;
    const int64_t first_channel = group * shape.in_channels;
    for (int64_t kernel_depth = 0; kernel_depth < shape.kernel_d; ++kernel_depth) {
      const int64_t source_depth = source_index(
          depth * shape.stride_d + kernel_depth * shape.dilation_d - sizes.padding_d, sizes.in_d,
          sizes.padding_mode);
      // Planes one after another where they lie apart, rows one after another where they do not.
      const int64_t outer = channels_last ? 1 : shape.in_channels;
      for (int64_t channel = 0; channel < outer; ++channel) {
        for (int64_t row = 0; row < used_rows; ++row) {
          const int64_t source_height =
              source_index(first_row * shape.stride_h + row - sizes.padding_h, sizes.in_h, sizes.padding_mode);
          real* to = planes + channel * layout.plane + (kernel_depth * layout.band_rows + row) * layout.phases * layout.pitch;
          const int64_t at = (source_depth * sizes.in_h + source_height) * sizes.in_w;
          if (source_depth < 0 || source_height < 0) {
            for (int64_t each = 0; each < shape.in_channels / outer; ++each) {
              fill_zeros(to + each * layout.plane, layout.phases * layout.pitch);
            }
          } else if constexpr (channels_last) {
            pack_row_from_pixels(to, input + (image * sizes.in_plane() + at) * all_channels + first_channel,
                                 shape.in_channels, all_channels, all_channels - first_channel - shape.in_channels);
          } else {
            pack_row_from_plane(to, input + (image * all_channels + first_channel + channel) * sizes.in_plane() + at, shape.stride_w, sizes.in_w);
          }
        }
      }
    }
  }

  // Whether the planes of a block stay in the first-level cache.
  bool is_small(const Shape& shape) const {
    return shape.in_channels * layout.plane * int64_t(sizeof(real)) <= small_bytes;
  }

  void map_columns(const Shape& shape, const Sizes& sizes) {
    for (int64_t phase = 0; phase < layout.phases; ++phase) {
      for (int64_t column = 0; column < layout.pitch; ++column) {
        const int64_t position = (first_column + column) * shape.stride_w + phase - sizes.padding_w;
        // Past the last window nothing is needed; what lies there may be beyond any padding.
        const bool is_needed = column <= columns - 1 + ((shape.kernel_w - 1) * shape.dilation_w) / shape.stride_w;
        column_sources[phase * layout.pitch + column] =
            is_needed ? int32_t(source_or_zero(position, sizes)) : -1;
      }
      stretches[phase] = find_stretch(column_sources + phase * layout.pitch, shape.stride_w);
    }
  }

  PlanarStretch find_stretch(const int32_t* source, int64_t stride) const {
    PlanarStretch found{layout.pitch, 0, 0, 0};
    for (int64_t begin = 0, end; begin < layout.pitch; begin = end) {
      end = begin + 1;
      if (source[begin] < 0) continue;
      while (end < layout.pitch && source[end] == source[end - 1] + stride) ++end;
      if (end - begin > found.end - found.begin) found.begin = begin, found.end = end;
      found.first = std::min(found.first, begin);
      found.last = end;
    }
    return found;
  }

  static int64_t source_or_zero(int64_t position, const Sizes& sizes) {
    const int64_t source = source_index(position, sizes.in_w, sizes.padding_mode);
    return source >= 0 && source < sizes.in_w ? source : -1;
  }

  void pack_row_from_plane(real* to, const value* from, int64_t stride, int64_t width) const {
    for (int64_t phase = 0; phase < layout.phases; ++phase) {
      const int32_t* source = column_sources + phase * layout.pitch;
      real* row = to + phase * layout.pitch;
      for (int64_t column = 0; column < layout.pitch; column += lanes) store(row + column, vec{});
      const PlanarStretch& inner = stretches[phase];
      const auto pack_some = [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; ++column) {
          if (source[column] >= 0) row[column] = Value::widen(from[source[column]]);
        }
      };
      int64_t packed = inner.begin;
      if (inner.end - inner.begin >= lanes) {
        const int64_t first = source[inner.begin];
        if (stride == 1) packed = pack_inner<1>(row, from + first, inner, width - first);
        if (stride == 2) packed = pack_inner<2>(row, from + first, inner, width - first);
        if (stride == 4) packed = pack_inner<4>(row, from + first, inner, width - first);
      }
      pack_some(inner.first, inner.begin);
      pack_some(packed, inner.last);
    }
  }

  // As many of the inner columns as whole vectors of the row give, of which `left` values are left. The last
  // vector overlaps the one before it.
  template <int stride>
  static SHORTHAUL_INLINE int64_t pack_inner(real* row, const value* from, const PlanarStretch& inner, int64_t left) {
    const int64_t count = std::min(inner.end - inner.begin, left / stride);
    if (count < lanes) return inner.begin;
    for (int64_t column = 0; column < count; column += lanes) {
      const int64_t at = std::min(column, count - lanes);
      store(row + inner.begin + at, load_every<stride>(from + at * stride));
    }
    return inner.begin + count;
  }

  // Every `stride`-th value, as many as a vector has lanes.
  template <int stride>
  static SHORTHAUL_INLINE vec load_every(const value* from) {
    if constexpr (stride == 1) {
      return Value::load(from);
    } else {
      constexpr int half = stride / 2;
      return every_second(load_every<half>(from), load_every<half>(from + half * lanes),
                          std::make_integer_sequence<int, lanes>{});
    }
  }

  template <int... lane>
  static SHORTHAUL_INLINE vec every_second(vec left, vec right, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(left, right, (2 * lane)...);
  }

  // `following`: channels of other groups that follow these in each pixel.
  void pack_row_from_pixels(real* to, const value* from, int64_t channels, int64_t all_channels, int64_t following) const {
    const int64_t positions = layout.phases * layout.pitch;
    for (int64_t channel = 0; channel < channels; channel += lanes) {
      const int64_t present = channels - channel < lanes ? channels - channel : lanes;
      // Few channels are read with those behind them, which are not stored; not behind the last pixel.
      const bool reads_whole = present == lanes || present + following >= lanes;
      for (int64_t column = 0; column < positions; column += lanes) {
        vec block[lanes];
        for (int lane = 0; lane < lanes; ++lane) {
          const int32_t source = column_sources[column + lane];
          const value* pixel = from + source * all_channels + channel;
          block[lane] = source < 0 ? vec{} : reads_whole ? Value::load(pixel) : load_part<Value>(pixel, present);
        }
        transpose(block);
        for (int lane = 0; lane < present; ++lane) store(to + (channel + lane) * layout.plane + column, block[lane]);
      }
    }
  }

  // A tile: `count` output channels times `vectors` vectors of outputs, `vector_step` apart in the
  // planes: neighbors in one row, or one per row where rows are short.
  template <int count, int vectors, bool is_adjacent>
  __attribute__((noinline)) void run_tile(real* sums_out, int64_t channel_step, const real* x, int64_t vector_step,
                                          const real* weights, const real* bias,
                                          const Shape& shape) const {
    vec sums[count][vectors];
#pragma GCC unroll 16
    for (int channel = 0; channel < count; ++channel) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        sums[channel][v] = bias == nullptr ? vec{} : broadcast(bias[channel]);
      }
    }
    const int64_t step = is_adjacent ? lanes : vector_step;
    const int64_t taps = shape.window_rows() * shape.kernel_w, channels = shape.in_channels;
    if (channels == 1) {
      // The general loops below would spend as much on themselves as on a tap.
#pragma GCC unroll 4
      for (int64_t tap = 0; tap < taps; ++tap) {
        accumulate_tap<count, vectors>(sums, x + tap_offsets[tap], step, weights + tap * count);
      }
      return store_tile<count, vectors>(sums_out, channel_step, sums);
    }
    // Taps of the window, then channels: the same order as every other kernel.
    for (int64_t tap = 0; tap < taps; ++tap) {
      const real* from = x + tap_offsets[tap];
      for (int64_t each = 0; each < channels; ++each) {
        accumulate_tap<count, vectors>(sums, from, step, weights);
        from += layout.plane;
        weights += count;
      }
    }
    store_tile<count, vectors>(sums_out, channel_step, sums);
  }

  // One tap of one channel for a whole tile.
  template <int count, int vectors>
  static SHORTHAUL_INLINE void accumulate_tap(vec (&sums)[count][vectors], const real* from, int64_t step,
                                              const real* weights) {
    if constexpr (count <= vectors) {
      vec held[count];
#pragma GCC unroll 16
      for (int channel = 0; channel < count; ++channel) held[channel] = broadcast(weights[channel]);
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const vec values = load(from + v * step);
#pragma GCC unroll 16
        for (int channel = 0; channel < count; ++channel) accumulate(sums[channel][v], held[channel], values);
      }
    } else {
      vec held[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) held[v] = load(from + v * step);
#pragma GCC unroll 16
      for (int channel = 0; channel < count; ++channel) {
        const vec weight = broadcast(weights[channel]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) accumulate(sums[channel][v], weight, held[v]);
      }
    }
  }

  template <int count, int vectors>
  static SHORTHAUL_INLINE void store_tile(real* to, int64_t channel_step,
                                          const vec (&sums)[count][vectors]) {
#pragma GCC unroll 16
    for (int channel = 0; channel < count; ++channel) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) store(to + channel * channel_step + v * lanes, sums[channel][v]);
    }
  }

  // Where the output of one channel starts for column `column` of a row.
  int64_t output_offset(int64_t channel, int64_t row, int64_t column, int64_t all_channels, const Sizes& sizes) const {
    const int64_t line =
        ((depth * sizes.step_d + sizes.first_d) * sizes.full_h + (first_row + row) * sizes.step_h + sizes.first_h) * sizes.full_w;
    const int64_t start = line + (first_column + column) * sizes.step_w + sizes.first_w;
    return channels_last ? (image * sizes.out_plane() + start) * all_channels + channel
                         : (image * all_channels + channel) * sizes.out_plane() + start;
  }

  // Finishes one vector of outputs of `count` neighboring channels, from column `column` of a row on: they are
  // transposed, so that the channels of a pixel leave together. Channel `i` of `sums` is `step` values on.
  template <int count, class Activation>
  void finish_pixels(value* output, const value* residual, int64_t channel, int64_t row, int64_t column,
                     const real* sums, int64_t step, int64_t all_channels, const Sizes& sizes) const {
    vec block[lanes] = {};
#pragma GCC unroll 16
    for (int each = 0; each < count; ++each) block[each] = load(sums + each * step);
    transpose(block);
    int64_t at = output_offset(channel, row, column, all_channels, sizes);
    const int64_t present = std::min<int64_t>(columns - column, lanes);
    for (int64_t lane = 0; lane < present; ++lane, at += sizes.step_w * all_channels) {
      finish<Value, Activation>(output, residual, at, block[lane], count);
    }
  }

  // Finishes `vectors` neighboring vectors of one channel, from column `column` of a row on.
  template <class Activation>
  void finish_line(value* output, const value* residual, int64_t channel, int64_t row,
                   int64_t column, const real* sums, int64_t vectors, int64_t all_channels,
                   const Sizes& sizes) const {
    const int64_t base = output_offset(channel, row, column, all_channels, sizes);
    if (!channels_last && sizes.step_w == 1) {
      for (int64_t v = 0; v < vectors; ++v) {
        finish<Value, Activation>(output, residual, base + v * lanes, load(sums + v * lanes), columns - column - v * lanes);
      }
      return;
    }
    const int64_t pixel_step = sizes.step_w * (channels_last ? all_channels : 1);
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t left = columns - column - v * lanes, present = left < lanes ? left : lanes;
      const int64_t at = base + v * lanes * pixel_step;
      finish_apart<Value, Activation>(output, residual, at, load(sums + v * lanes), present, pixel_step);
    }
  }
};

}  // namespace shorthaul
