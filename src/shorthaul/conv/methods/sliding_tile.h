// Some neighboring output rows of a depthwise convolution, one or a few vectors wide.
//
// Every image row under it is loaded once per kernel column and serves all outputs that it touches,
// so the loads are a half to a third of the FMAs, and the weights of a kernel column stay in registers.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"

#define SHORTHAUL_INLINE_LAMBDA __attribute__((always_inline))

namespace shorthaul {

// Image rows under `rows` neighboring output rows.
constexpr int rows_under(int rows, int kernel_h, int stride_h) { return (rows - 1) * stride_h + kernel_h; }

// What one image row adds: sums[r] += image * weights[under - r * stride_h], where that weight exists.
template <int under, int rows, int kernel_h, int stride_h, int row = 0>
static SHORTHAUL_INLINE void add_row(vec (&sums)[rows], const vec (&weights)[kernel_h], vec image) {
  if constexpr (row < rows) {
    constexpr int u = under - row * stride_h;
    if constexpr (u >= 0 && u < kernel_h) accumulate(sums[row], image, weights[u]);
    add_row<under, rows, kernel_h, stride_h, row + 1>(sums, weights, image);
  }
}

// One kernel column: sums[r] += image(r * stride_h + u) * weights[u], for u in order. Written out by
// the templates: g++ 12 leaves loops whose bounds are such conditions as loops, and the sums in memory.
template <int rows, int kernel_h, int stride_h, int under = 0, class Image>
static SHORTHAUL_INLINE void slide(vec (&sums)[rows], const vec (&weights)[kernel_h], const Image& image) {
  if constexpr (under < rows_under(rows, kernel_h, stride_h)) {
    add_row<under, rows, kernel_h, stride_h>(sums, weights, image(under));
    slide<rows, kernel_h, stride_h, under + 1>(sums, weights, image);
  }
}

// What becomes of a sum. Plain stores have a version of the tile to themselves: with a choice behind
// them, g++ 12 keeps the sums in memory.
template <class Value, class Activation, bool is_plain>
static SHORTHAUL_INLINE void put(typename Value::value* output, const typename Value::value* residual, int64_t at, vec sum, int64_t count) {
  if constexpr (is_plain) {
    Value::store(output + at, sum);
  } else {
    finish<Value, Activation>(output, residual, at, sum, count);
  }
}

// Channels-last images: vectors of channels, read where they lie.
template <class Value, class Activation, int tile_pixels, int kernel_h, int stride_h>
struct SlidingPixels {
  using value = typename Value::value;

  const Shape& shape;
  const Sizes& sizes;
  const int64_t channels, padded_channels;
  int64_t* columns;  // offset of the image column under each window column; -1 for zeros
  const value* lines[32];

  template <class Workspace>
  SlidingPixels(const Workspace& at, const Shape& shape, const Sizes& sizes)
      : shape(shape),
        sizes(sizes),
        channels(shape.groups),
        padded_channels((shape.groups + lanes - 1) / lanes * lanes),
        columns(at.columns) {
    const int64_t count = (sizes.out_w - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1;
    for (int64_t column = 0; column < count; ++column) {
      const int64_t source = source_index(column - sizes.padding_w, sizes.in_w, sizes.padding_mode);
      columns[column] = source < 0 ? -1 : source * channels;
    }
  }

  // The rows of one image from output row `first` on. Whether all rows under them exist and follow
  // each other decides which of two versions runs: the rarely taken one looks each row up.
  template <int rows>
  void run(const value* input, const real* weights, const real* bias, const value* residual,
           value* output, int64_t image, int64_t depth, int64_t first) {
    constexpr int under = rows_under(rows, kernel_h, stride_h);
    const int64_t top = first * stride_h - sizes.padding_h;
    const int64_t source_depth = source_index(depth * shape.stride_d - sizes.padding_d, sizes.in_d, sizes.padding_mode);
    const value* plane = input + (image * sizes.in_plane() + source_depth * sizes.in_h * sizes.in_w) * channels;
    const bool is_inner = source_depth >= 0 && top >= 0 && top + under <= sizes.in_h;
    for (int each = 0; each < under; ++each) {
      const int64_t source = source_depth < 0 ? -1 : source_index(top + each, sizes.in_h, sizes.padding_mode);
      lines[each] = source < 0 ? nullptr : plane + source * sizes.in_w * channels;
    }
    const OutputRow row(first + (depth + image * sizes.out_d) * sizes.out_h, sizes);
    const Span inside = inner_outputs(sizes.in_w, (shape.kernel_w - 1) * shape.dilation_w + 1, shape.stride_w, sizes.padding_w);
    tiles_by_edges(sizes.out_w, inside, tile_pixels, [&](int64_t column, int64_t size) {
      with_constant<tile_pixels>(size, [&](auto pixels) {
        const int64_t at = (image * sizes.out_plane() + row.position(column, sizes)) * channels;
        const int64_t full = channels / lanes * lanes;
        const bool is_whole = is_inner && column >= inside.begin && column < inside.end;
        // At the edges one output at a time: less code to compile.
        for (int pixel = 0; pixel < pixels; ++pixel) {
          const int64_t here = at + pixel * sizes.step_w * channels;
          if (!is_whole) run_tiles<rows, 1, false, false, false>(weights, bias, residual, output, column + pixel, here, 0, full);
          if (full < channels) run_tiles<rows, 1, false, true, false>(weights, bias, residual, output, column + pixel, here, full, channels);
        }
        if (!is_whole) return;
        if (residual == nullptr && std::is_same_v<Activation, NoActivation>) {
          run_tiles<rows, pixels, true, false, true>(weights, bias, residual, output, column, at, 0, full);
        } else {
          run_tiles<rows, pixels, true, false, false>(weights, bias, residual, output, column, at, 0, full);
        }
      });
    });
  }

  template <int rows, int pixels, bool is_inner, bool is_partial, bool is_plain>
  __attribute__((noinline)) void run_tiles(const real* weights, const real* bias, const value* residual, value* output,
                                           int64_t column, int64_t at, int64_t channel, int64_t end) const {
    const int64_t row_step = sizes.in_w * channels, tap_step = padded_channels, dilation = shape.dilation_w;
    const int64_t out_row = sizes.step_h * sizes.full_w * channels, out_pixel = sizes.step_w * channels;
    const int64_t stride = shape.stride_w, pixel_step = stride * channels, column_step = dilation * channels;
    const int64_t* first_source = columns + column * stride;
    const value* corner = is_inner ? lines[0] + *first_source : nullptr;
    for (; channel < end; channel += lanes) {
      vec sums[pixels][rows];
      const vec begin = bias == nullptr ? vec{} : load(bias + channel);
#pragma GCC unroll 16
      for (int pixel = 0; pixel < pixels; ++pixel) {
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) sums[pixel][row] = begin;
      }
      const int64_t present = channels - channel;
      const real* taps = weights + channel;
#pragma GCC unroll 1
      for (int64_t kernel_column = 0; kernel_column < shape.kernel_w; ++kernel_column) {
        vec held[kernel_h];
#pragma GCC unroll 16
        for (int u = 0; u < kernel_h; ++u, taps += tap_step) held[u] = load(taps);
        if constexpr (is_inner) {
          const value* first = corner + kernel_column * column_step + channel;
#pragma GCC unroll 16
          for (int pixel = 0; pixel < pixels; ++pixel, first += pixel_step) {
            const value* from = first;
            slide<rows, kernel_h, stride_h>(sums[pixel], held, [&](int) SHORTHAUL_INLINE_LAMBDA {
              const vec here = Value::load(from);
              from += row_step;
              return here;
            });
          }
        } else {
          const int64_t* sources = first_source + kernel_column * dilation;
#pragma GCC unroll 16
          for (int pixel = 0; pixel < pixels; ++pixel) {
            const int64_t source = sources[pixel * stride];
            if (source < 0) continue;
            slide<rows, kernel_h, stride_h>(sums[pixel], held, [&](int under) SHORTHAUL_INLINE_LAMBDA {
              if (lines[under] == nullptr) return vec{};
              const value* here = lines[under] + source + channel;
              return is_partial ? load_part<Value>(here, present) : Value::load(here);
            });
          }
        }
      }
#pragma GCC unroll 16
      for (int pixel = 0; pixel < pixels; ++pixel) {
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) {
          put<Value, Activation, is_plain>(output, residual, at + pixel * out_pixel + row * out_row + channel, sums[pixel][row],
                                           is_partial ? present : lanes);
        }
      }
    }
  }
};

// Contiguous images: vectors of neighboring outputs. The rows under a block are widened and padded
// into a band, one phase of the stride after another, that stays in the first-level cache.
template <class Value, class Activation, int tile_vectors, int kernel_h, int stride_h>
struct SlidingPlane {
  using value = typename Value::value;

  const Shape& shape;
  const Sizes& sizes;
  int64_t phases, pitch, inner_begin, inner_end;
  int64_t count;     // window columns
  int32_t* columns;  // the image column under each window column; -1 for zeros
  int32_t* places;   // where each window column lies in a packed row
  real* band;

  template <class Workspace>
  SlidingPlane(const Workspace& at, int64_t band_rows, const Shape& shape, const Sizes& sizes)
      : shape(shape), sizes(sizes), columns(at.columns), places(at.column_places), band(at.band) {
    const int64_t reach = (shape.kernel_w - 1) * shape.dilation_w + 1;
    count = (sizes.out_w - 1) * shape.stride_w + reach;
    phases = shape.stride_w;
    pitch = ((sizes.out_w + lanes - 1) / lanes + (reach - 1) / shape.stride_w / lanes + 1) * lanes;
    for (int64_t column = 0; column < count; ++column) {
      columns[column] = int32_t(source_index(column - sizes.padding_w, sizes.in_w, sizes.padding_mode));
      places[column] = int32_t(column % phases * pitch + column / phases);
    }
    inner_begin = sizes.padding_w < 0 ? 0 : sizes.padding_w < count ? sizes.padding_w : count;
    inner_end = sizes.padding_w + sizes.in_w < count ? sizes.padding_w + sizes.in_w : count;
    // What lies past the last window is read, but never stored: it only must not be slow.
    fill_zeros(band, band_rows * phases * pitch);
  }

  // Window column c of a row lies at phase c % stride, place c / stride.
  void pack_row(real* to, const value* from) const {
    const int64_t stride = shape.stride_w;
    if (from == nullptr) return fill_zeros(to, phases * pitch);
    int64_t column = 0;
    const auto pack_one = [&](int64_t each) {
      const int32_t source = columns[each];
      to[places[each]] = source < 0 ? 0 : Value::widen(from[source]);
    };
    for (; column < inner_begin; ++column) pack_one(column);
    // Whole vectors, of which the last overlaps the one before it.
    if (stride == 1 && inner_end - column >= lanes) {
      for (; column < inner_end; column += lanes) {
        const int64_t here = std::min<int64_t>(column, inner_end - lanes);
        store(to + here, Value::load(from + here - sizes.padding_w));
      }
      column = inner_end;
    } else if (stride == 2) {
      if (column < inner_end && column % 2) pack_one(column++);
      const int64_t last = (inner_end - 2 * lanes) / 2 * 2;
      if (last >= column) {
        for (; column < last + 2 * lanes; column += 2 * lanes) {
          const int64_t here = std::min(column, last);
          const value* pair = from + here - sizes.padding_w;
          split(to + here / 2, to + pitch + here / 2, Value::load(pair), Value::load(pair + lanes),
                std::make_integer_sequence<int, lanes>{});
        }
        column = last + 2 * lanes;
      }
    }
    for (; column < count; ++column) pack_one(column);
  }

  template <int... lane>
  static SHORTHAUL_INLINE void split(real* even, real* odd, vec left, vec right, std::integer_sequence<int, lane...>) {
    store(even, __builtin_shufflevector(left, right, (2 * lane)...));
    store(odd, __builtin_shufflevector(left, right, (2 * lane + 1)...));
  }

  // Packs the image rows under `rows` output rows of one channel.
  void pack(const value* plane, int64_t first, int64_t rows, bool is_absent) const {
    for (int64_t each = 0; each < rows_under(int(rows), kernel_h, stride_h); ++each) {
      const int64_t source = is_absent ? -1 : source_index(first * stride_h + each - sizes.padding_h, sizes.in_h, sizes.padding_mode);
      pack_row(band + each * phases * pitch, source < 0 ? nullptr : plane + source * sizes.in_w);
    }
  }

  // Some output rows: tiles of neighboring vectors, of which the last overlaps the one before it; in rows of
  // less than a vector, and where sums need more than storing, one vector at a time.
  template <int rows>
  void run_row(const real* x, const real* weights, real bias, const value* residual, value* output, int64_t at) const {
    const bool is_plain = residual == nullptr && std::is_same_v<Activation, NoActivation>;
    if (is_plain && sizes.out_w >= tile_vectors * lanes) {
      run_tiles<rows, tile_vectors, true>(x, weights, bias, residual, output, at);
    } else if (is_plain && sizes.out_w >= lanes) {
      run_tiles<rows, 1, true>(x, weights, bias, residual, output, at);
    } else {
      run_tiles<rows, 1, false>(x, weights, bias, residual, output, at);
    }
  }

  template <int rows, int vectors, bool is_plain>
  __attribute__((noinline)) void run_tiles(const real* x, const real* weights, real bias, const value* residual,
                                           value* output, int64_t at) const {
    const int64_t row_step = phases * pitch, step = sizes.full_w;
    for (int64_t next = 0; next < sizes.out_w; next += vectors * lanes) {
      const int64_t column = is_plain ? std::min(next, sizes.out_w - vectors * lanes) : next;
      vec sums[vectors][rows];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) sums[v][row] = broadcast(bias);
      }
      const real* taps = weights;
      int64_t place = 0;
      for (int64_t kernel_column = 0; kernel_column < shape.kernel_w; ++kernel_column, place += shape.dilation_w, taps += kernel_h) {
        vec held[kernel_h];
#pragma GCC unroll 16
        for (int u = 0; u < kernel_h; ++u) held[u] = broadcast(taps[u]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const real* from = x + column + places[place] + v * lanes;
          slide<rows, kernel_h, stride_h>(sums[v], held, [&](int) SHORTHAUL_INLINE_LAMBDA {
            const vec here = load(from);
            from += row_step;
            return here;
          });
        }
      }
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const int64_t first = column + v * lanes;
          put<Value, Activation, is_plain>(output, residual, at + row * step + first, sums[v][row], sizes.out_w - first);
        }
      }
    }
  }
};

}  // namespace shorthaul
