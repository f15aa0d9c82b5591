// Packing the window strip of one output row: image columns one after another, each with all its
// window rows and channels, so that a window is one contiguous run and neighboring windows overlap.
// Padding of every mode, widening to the type of the sums and transposition happen on the way.
#pragma once

#include "shorthaul/conv/methods/geometry.h"
#include "shorthaul/conv/methods/vector.h"

namespace shorthaul {

// What is packed of an image: its values, widened to what is summed.
template <class Value>
struct Widened {
  using value = typename Value::value;
  using packed = real;
  static constexpr bool is_real = Value::is_real;
  static constexpr int block = lanes;  // channels that are transposed at once

  static SHORTHAUL_INLINE packed from(value image) { return Value::widen(image); }

  static SHORTHAUL_INLINE void copy(packed* to, const value* from, int64_t count) {
    int64_t channel = 0;
    for (; channel + lanes <= count; channel += lanes) store(to + channel, Value::load(from + channel));
    for (; channel < count; ++channel) to[channel] = Value::widen(from[channel]);
  }

  // Lane `lane` of a block of as many neighboring pixels, whose channels are a plane apart.
  static SHORTHAUL_INLINE vec load(const value* corner, int lane, int64_t plane) {
    return Value::load(corner + lane * plane);
  }
};

// The same with 16 bits as they are, for kernels that multiply them two by two.
struct Halves {
  using value = uint16_t;
  using packed = uint16_t;
  static constexpr bool is_real = false;
  static constexpr int block = 2 * lanes;

  static SHORTHAUL_INLINE packed from(value image) { return image; }

  static SHORTHAUL_INLINE void copy(packed* to, const value* from, int64_t count) {
    std::memcpy(to, from, count * sizeof(packed));
  }

  static SHORTHAUL_INLINE vec load(const value* corner, int lane, int64_t plane) {
    half_lanes low, high;
    std::memcpy(&low, corner + 2 * lane * plane, sizeof low);
    std::memcpy(&high, corner + (2 * lane + 1) * plane, sizeof high);
    return (vec)(__builtin_convertvector(high, bit_lanes) << 16 | __builtin_convertvector(low, bit_lanes));
  }
};

// The image column under each packed column, and the stretch where they run side by side.
struct Columns {
  int32_t* source;
  int64_t count, inner_begin, inner_end;
  int64_t dropped = 0;  // from the left, before the first packed column

  void fill(int64_t first_output, int64_t outputs, const Shape& shape, const Sizes& sizes) {
    const int64_t first = first_output * shape.column_step();
    count = shape.columns(outputs);
    for (int64_t column = 0; column < count; ++column) {
      source[column] = int32_t(source_column(first + column, shape, sizes));
    }
    inner_begin = inner_end = 0;
    if (shape.skips_columns()) return;
    const int64_t start = sizes.padding_w - first;
    const int64_t stop = start + sizes.in_w;
    inner_begin = start < 0 ? 0 : start > count ? count : start;
    inner_end = stop < inner_begin ? inner_begin : stop > count ? count : stop;
  }

  // Leaves away the zeros of the padding, where no tap reads them; not where columns are packed by windows.
  void drop_padding(const Shape& shape) {
    dropped = 0;
    if (shape.skips_columns()) return;
    dropped = inner_begin;
    count = inner_end - inner_begin;
    std::memmove(source, source + dropped, count * sizeof *source);
    inner_begin = 0, inner_end = count;
  }
};

template <class packed>
static SHORTHAUL_INLINE void fill_zeros(packed* to, int64_t count) {
  for (int64_t each = 0; each < count; ++each) to[each] = 0;
}

// A few channels, with one load and one store of `wide` values: what is too much is overwritten by
// the next window row, which the caller packs later.
template <class In, int wide>
static SHORTHAUL_INLINE void copy_more(real* to, const typename In::value* from) {
  static_assert(In::is_real);
  typedef real piece __attribute__((vector_size(wide * sizeof(real))));
  piece held;
  std::memcpy(&held, from, sizeof held);
  std::memcpy(to, &held, sizeof held);
}

// One window row of channels-last images: runs of channels, `pitch` apart in the strip. `may_spill`:
// the values that follow in the strip are not packed yet.
template <class In>
static SHORTHAUL_INLINE void pack_row_channels_last(typename In::packed* to, const typename In::value* from,
                                                    const Columns& columns, int64_t pitch,
                                                    int64_t channels, int64_t all_channels,
                                                    bool may_spill) {
  const bool is_whole = pitch == all_channels && channels == all_channels;
  const auto pack_some = [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      const int64_t source = columns.source[column];
      if (source < 0) {
        fill_zeros(to + column * pitch, channels);
      } else {
        In::copy(to + column * pitch, from + source * all_channels, channels);
      }
    }
  };
  if (is_whole && columns.inner_begin < columns.inner_end) {  // pixels as they lie in the image
    const int64_t begin = columns.inner_begin, end = columns.inner_end;
    pack_some(0, begin);
    In::copy(to + begin * pitch, from + columns.source[begin] * pitch, (end - begin) * pitch);
    return pack_some(end, columns.count);
  }
  if constexpr (In::is_real) {
    // What is too much of two to four channels is less than one window row, and less than one pixel
    // of the image: the last column, behind which the image may end, is left out.
    const int64_t last = columns.inner_end - 1;
    if (may_spill && channels >= 2 && channels <= 4 && columns.inner_begin < last) {
      pack_some(0, columns.inner_begin);
      const auto* line = from + columns.source[columns.inner_begin] * all_channels;
      real* at = to + columns.inner_begin * pitch;
      for (int64_t column = columns.inner_begin; column < last; ++column) {
        copy_more<In, 4>(at, line);
        at += pitch;
        line += all_channels;
      }
      return pack_some(last, columns.count);
    }
  }
  pack_some(0, columns.count);
}

// Vector `which` of as many as there are planes: their lanes in turn, as the channels of pixels.
template <int planes, int which, int... lane>
static SHORTHAUL_INLINE vec interleave(const vec (&from)[planes], std::integer_sequence<int, lane...>) {
  const auto plane_of = [](int each) { return (which * lanes + each) % planes; };
  const auto pixel_of = [](int each) { return (which * lanes + each) / planes; };
  vec pixels = __builtin_shufflevector(from[0], from[1], (plane_of(lane) == 1 ? lanes + pixel_of(lane) : pixel_of(lane))...);
  if constexpr (planes > 2) {
    pixels = __builtin_shufflevector(pixels, from[2], (plane_of(lane) == 2 ? lanes + pixel_of(lane) : lane)...);
  }
  return pixels;
}

// `count` neighboring columns of two or three planes as pixels, all that fill vectors; how many these are.
template <class In, int planes>
static SHORTHAUL_INLINE int64_t pack_pixels(real* to, const typename In::value* from, int64_t count, int64_t plane) {
  int64_t column = 0;
  for (; column + lanes <= count; column += lanes) {
    vec rows[planes];
#pragma GCC unroll 4
    for (int each = 0; each < planes; ++each) rows[each] = In::load(from + column, each, plane);
    constexpr auto all = std::make_integer_sequence<int, lanes>{};
    real* pixels = to + column * planes;
    store(pixels, interleave<planes, 0>(rows, all));
    store(pixels + lanes, interleave<planes, 1>(rows, all));
    if constexpr (planes > 2) store(pixels + 2 * lanes, interleave<planes, 2>(rows, all));
  }
  return column;
}

// One window row of contiguous images: channels are a plane apart, so blocks are transposed.
template <class In>
static SHORTHAUL_INLINE void pack_row_contiguous(typename In::packed* to, const typename In::value* from,
                                                 const Columns& columns, int64_t pitch,
                                                 int64_t channels, int64_t plane) {
  const auto pack_one = [&](int64_t column, int64_t channel) {
    const int64_t source = columns.source[column];
    to[column * pitch + channel] = source < 0 ? 0 : In::from(from[channel * plane + source]);
  };
  int64_t channel = 0;
  // Of the inner columns, those that left together as pixels of a few channels.
  int64_t packed_end = columns.inner_begin;
  if constexpr (std::is_same_v<typename In::packed, real>) {
    if (pitch == channels && (channels == 2 || channels == 3) && columns.inner_begin < columns.inner_end) {
      real* pixels = to + columns.inner_begin * pitch;
      const auto* row = from + columns.source[columns.inner_begin];
      const int64_t count = columns.inner_end - columns.inner_begin;
      packed_end += channels == 2 ? pack_pixels<In, 2>(pixels, row, count, plane) : pack_pixels<In, 3>(pixels, row, count, plane);
    }
  }
  for (; channel + In::block <= channels; channel += In::block) {
    int64_t column = 0;
    for (; column < columns.inner_begin; ++column) {
      for (int each = 0; each < In::block; ++each) pack_one(column, channel + each);
    }
    for (; column + lanes <= columns.inner_end; column += lanes) {
      vec block[lanes];
      const auto* corner = from + channel * plane + columns.source[column];
#pragma GCC unroll 16
      for (int lane = 0; lane < lanes; ++lane) block[lane] = In::load(corner, lane, plane);
      transpose(block);
#pragma GCC unroll 16
      for (int lane = 0; lane < lanes; ++lane) {
        std::memcpy(to + (column + lane) * pitch + channel, &block[lane], sizeof(vec));
      }
    }
    for (; column < columns.count; ++column) {
      for (int each = 0; each < In::block; ++each) pack_one(column, channel + each);
    }
  }
  for (; channel < channels; ++channel) {
    int64_t column = 0;
    for (; column < columns.inner_begin; ++column) pack_one(column, channel);
    if (columns.inner_begin < columns.inner_end) {
      const auto* row = from + channel * plane + columns.source[columns.inner_begin];
      for (column = packed_end; column < columns.inner_end; ++column) {
        to[column * pitch + channel] = In::from(row[column - columns.inner_begin]);
      }
    }
    for (; column < columns.count; ++column) pack_one(column, channel);
  }
}

// The strip of one output row for channels [first_channel, first_channel + channels) of all:
// `pitch` values per packed column.
template <class In, bool channels_last>
static SHORTHAUL_INLINE void pack_strip(typename In::packed* strip, const typename In::value* input,
                                        const OutputRow& row, const Columns& columns,
                                        int64_t first_channel, int64_t channels, int64_t pitch,
                                        const Shape& shape, const Sizes& sizes) {
  const int64_t all_channels = shape.in_channels * shape.groups;
  const int64_t plane = sizes.in_plane();
  for (int64_t window_row = 0; window_row < shape.window_rows(); ++window_row) {
    auto* to = strip + window_row * channels;
    const int64_t source = source_row(row, window_row, shape, sizes);
    if (source < 0) {
      for (int64_t column = 0; column < columns.count; ++column) {
        fill_zeros(to + column * pitch, channels);
      }
    } else if constexpr (channels_last) {
      const auto* from =
          input + (row.image * plane + source * sizes.in_w) * all_channels + first_channel;
      pack_row_channels_last<In>(to, from, columns, pitch, channels, all_channels,
                                 window_row + 1 < shape.window_rows());
    } else {
      const auto* from =
          input + (row.image * all_channels + first_channel) * plane + source * sizes.in_w;
      pack_row_contiguous<In>(to, from, columns, pitch, channels, plane);
    }
  }
}

// Row `height` of the image of an output row, padded and widened: `in_channels` values per column.
template <class In, bool channels_last>
static SHORTHAUL_INLINE void pack_image_row(typename In::packed* to, const typename In::value* input,
                                            const OutputRow& row, int64_t height,
                                            const Columns& columns, int64_t first_channel,
                                            const Shape& shape, const Sizes& sizes) {
  const int64_t all_channels = shape.in_channels * shape.groups, plane = sizes.in_plane();
  const int64_t depth = source_index(row.depth * shape.stride_d - sizes.padding_d, sizes.in_d, sizes.padding_mode);
  const int64_t line = source_index(height, sizes.in_h, sizes.padding_mode);
  if (depth < 0 || line < 0) return fill_zeros(to, columns.count * shape.in_channels);
  const int64_t source = (depth * sizes.in_h + line) * sizes.in_w;
  if constexpr (channels_last) {
    const auto* from = input + (row.image * plane + source) * all_channels + first_channel;
    pack_row_channels_last<In>(to, from, columns, shape.in_channels, shape.in_channels, all_channels, false);
  } else {
    const auto* from = input + (row.image * all_channels + first_channel) * plane + source;
    pack_row_contiguous<In>(to, from, columns, shape.in_channels, shape.in_channels, plane);
  }
}

}  // namespace shorthaul
