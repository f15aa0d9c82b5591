// A block of output pixels: where their windows lie, and the sums that wait between two chunks.
#pragma once

#include "shorthaul/conv/methods/output.h"
#include "shorthaul/conv/methods/packing.h"
#include "shorthaul/conv/methods/tap_classes.h"
#include "shorthaul/conv/methods/tile.h"

namespace shorthaul {

static SHORTHAUL_INLINE int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What windows are read from. Every layout has the same values in the same order, only in runs of
// other lengths: whole windows, or the channels of one pixel.
enum class Windows {
  strips,    // packed in window order, once per output row
  rows,      // image rows packed once for all output rows of the block, padded and widened
  in_place,  // the image itself
};

// Runs of a window that are summed at one go.
struct Chunk {
  int64_t first_run, last_run;  // [first_run, last_run)
  int64_t begin, count;         // values of each run
  int64_t depth;                // how many values came before
  bool is_last;
};

// Where the sums of one panel go.
template <class value>
struct Target {
  value* output;
  const value* residual;
  int64_t channel, channels;  // the panel's first output channel, and how many there are
  bool is_plain;              // no residual, and an activation that is short
};

// `run_length`: values of a run where they are known when the kernel is compiled, else 0 or `even_runs`. `window_step`:
// values from one window of an output row to the next where tiles shall rely on it, else 0. `In`: what is
// packed of the image. `joins_columns`: a run is a whole row of a window; sums are then in another order.
// `can_skip`: a run is a tap, and those in zero padding may be left out.
template <class Value, class In, bool channels_last, Windows layout, bool joins_columns, int64_t run_length,
          int64_t window_step, bool can_skip, bool has_prefetch>
struct WindowBlock {
  using value = typename Value::value;

  const int64_t block_rows, block_columns;
  factor* packed;           // strips or rows
  real* stage;              // [pixel][channel of the panel]
  int64_t* window_offsets;  // of each pixel, in `packed` or in the input
  int64_t* output_offsets;  // of each pixel's first channel
  int64_t* places;          // of each pixel of a contiguous output in the stage, where taps are skipped
  Run* window_runs;         // of a whole window
  Run* class_runs;          // of the class that is being summed
  int64_t runs, run_values;
  int64_t window_steps;     // of all runs
  TapClasses classes;
  Columns columns;
  const factor* windows = nullptr;
  int64_t pixels = 0, row_pixels = 0;  // of the block, and of each of its output rows

  template <class Workspace>
  WindowBlock(const Workspace& at, int64_t block_rows, int64_t block_columns, bool skips_padding, const Shape& shape,
              const Sizes& sizes)
      : block_rows(block_rows), block_columns(block_columns), packed(at.packed), stage(at.stage),
        window_offsets(at.window_offsets), output_offsets(at.output_offsets), places(at.places_of_pixels),
        window_runs(at.window_runs), class_runs(at.class_runs) {
    columns.source = at.columns;
    if constexpr (can_skip) classes.take(skips_padding, at);
    columns.count = shape.columns(block_columns);
    find_runs(shape, sizes);
  }

  // Values between two packed image columns.
  static SHORTHAUL_INLINE int64_t column_pitch(const Shape& shape) {
    return layout == Windows::strips ? shape.column_values() : shape.in_channels;
  }

  // A window is one run of values, unless rows, dilation or other groups' channels lie in between.
  void find_runs(const Shape& shape, const Sizes& sizes) {
    const int64_t all_inputs = layout == Windows::in_place ? shape.in_channels * shape.groups : shape.in_channels;
    const int64_t wide = layout == Windows::in_place ? sizes.in_w : columns.count;
    const bool is_strip = layout == Windows::strips || (shape.window_rows() == 1 && all_inputs == shape.in_channels);
    runs = 0;
    const auto add_run = [&](int64_t offset) {
      window_runs[runs] = {offset, runs * steps_of(run_values)};
      window_steps = ++runs * steps_of(run_values);
    };
    if (is_strip) {
      const bool is_whole = shape.dilation_w == 1;
      run_values = is_whole ? shape.window_values() : shape.column_values();
      for (int64_t column = 0; column < (is_whole ? 1 : shape.kernel_w); ++column) {
        add_run(column * shape.dilation_w * shape.column_values());
      }
      return;
    }
    run_values = shape.in_channels * (joins_columns ? shape.kernel_w : 1);
    for (int64_t column = 0; column < (joins_columns ? 1 : shape.kernel_w); ++column) {
      for (int64_t depth = 0; depth < shape.kernel_d; ++depth) {
        for (int64_t row = 0; row < shape.kernel_h; ++row) {
          const int64_t line = depth * shape.dilation_d * sizes.in_h + row * shape.dilation_h;
          add_run((line * wide + column * shape.dilation_w) * all_inputs);
        }
      }
    }
  }

  // Packs what the windows of one block need of one group, and notes where each pixel's window is
  // and where its output goes.
  void pack(const value* input, int64_t row_block, int64_t column_block, int64_t group,
            const Shape& shape, const Sizes& sizes) {
    const int64_t first_column = column_block * block_columns;
    const int64_t outputs =
        sizes.out_w - first_column < block_columns ? sizes.out_w - first_column : block_columns;
    const Span rows = even_part(sizes.rows(), block_rows, row_block);
    const int64_t all_inputs = shape.in_channels * shape.groups;
    const int64_t all_outputs = shape.out_channels * shape.groups;
    const int64_t first_channel = group * shape.in_channels;
    const int64_t step = layout == Windows::in_place ? shape.stride_w * all_inputs
                                                     : shape.column_step() * column_pitch(shape);
    if (layout != Windows::in_place) {
      columns.fill(first_column, outputs, shape, sizes);
      if (is_skipping()) columns.drop_padding(shape);
      if (layout == Windows::rows) find_runs(shape, sizes);  // blocks differ in width
    }
    if constexpr (can_skip) classes.find(rows, first_column, outputs, shape, sizes);
    Band band;
    pixels = 0, row_pixels = outputs;
    for (int64_t each = rows.begin; each < rows.end; ++each) {
      const OutputRow row(each, sizes);
      int64_t window;
      if constexpr (layout == Windows::in_place) {
        // Windows that reach into padding begin before what they read, as do those of packed rows.
        const int64_t line = (row.image * sizes.in_d + row.depth * shape.stride_d - sizes.padding_d) * sizes.in_h +
                             row.height * shape.stride_h - sizes.padding_h;
        const int64_t at = line * sizes.in_w + first_column * shape.stride_w - sizes.padding_w;
        window = at * all_inputs + first_channel;
      } else if constexpr (layout == Windows::rows) {
        window = pack_band(band, input, row, first_channel, shape, sizes) - columns.dropped * shape.in_channels;
      } else {
        window = (each - rows.begin) * columns.count * shape.column_values();
        pack_strip<In, channels_last>(packed + window, input, row, columns, first_channel,
                                         shape.in_channels, shape.column_values(), shape, sizes);
      }
      const int64_t image = row.image * sizes.out_plane();
      const int64_t position = row.position(first_column, sizes);
      const int64_t output = channels_last ? (image + position) * all_outputs : image * all_outputs + position;
      const int64_t output_step = sizes.step_w * (channels_last ? all_outputs : 1);
      const auto note = [&](Span some, int64_t pixel) {
        for (int64_t column = some.begin; column < some.end; ++column, ++pixel) {
          // Contiguous outputs leave in the order of the image, whatever the order of their sums.
          const int64_t leaving = channels_last ? pixel : pixels + column;
          window_offsets[pixel] = window + column * step;
          output_offsets[leaving] = output + column * output_step;
          if (can_skip && !channels_last) places[leaving] = pixel;
        }
      };
      if constexpr (can_skip) {
        classes.for_each_part(each - rows.begin, note);
      } else {
        note(Span{0, outputs}, pixels);
      }
      pixels += outputs;
    }
    if constexpr (layout == Windows::in_place) {
      windows = reinterpret_cast<const factor*>(input);
    } else {
      windows = packed;
    }
  }

  // The rows of one image that are packed so far: image row `height` is line `origin + height`.
  struct Band {
    int64_t image = -1, depth = -1, origin = 0, filled = 0;
  };

  // Packs the image rows under one output row that its neighbors have not packed; where its first
  // window is. Windows that reach into padding which is not packed begin before the rows they read.
  int64_t pack_band(Band& band, const value* input, const OutputRow& row, int64_t first_channel,
                    const Shape& shape, const Sizes& sizes) const {
    const int64_t pitch = columns.count * shape.in_channels;
    const int64_t top = row.height * shape.stride_h - sizes.padding_h;
    Span read{top, top + (shape.kernel_h - 1) * shape.dilation_h + 1};
    if (is_skipping()) read = {std::clamp<int64_t>(top, 0, sizes.in_h), std::min(read.end, sizes.in_h)};
    if (band.image != row.image || band.depth != row.depth) {
      band = Band{row.image, row.depth, band.filled - read.begin, band.filled};
    }
    band.filled = std::max(band.filled, band.origin + read.begin);  // past rows that no window reads
    for (; band.filled < band.origin + read.end; ++band.filled) {
      pack_image_row<In, channels_last>(packed + band.filled * pitch, input, row, band.filled - band.origin, columns,
                                           first_channel, shape, sizes);
    }
    return (band.origin + top) * pitch;
  }

  // Calls body(chunk) for each chunk of the window: whole runs, or parts of long ones whose length is
  // not compiled in.
  template <class Body>
  SHORTHAUL_INLINE void for_each_chunk(int64_t most, const Body& body) const {
    if (run_length == 0 && run_values > most) {
      for (int64_t run = 0; run < runs; ++run) {
        for (int64_t begin = 0; begin < run_values; begin += most) {
          const int64_t count = run_values - begin < most ? run_values - begin : most;
          body(Chunk{run, run + 1, begin, count, run * run_values + begin,
                     run + 1 == runs && begin + count == run_values});
        }
      }
      return;
    }
    const int64_t together = most < run_values ? 1 : most / run_values;
    for (int64_t run = 0; run < runs; run += together) {
      const int64_t last = run + together < runs ? run + together : runs;
      body(Chunk{run, last, 0, run_values, run * run_values, last == runs});
    }
  }

  // Calls body(first, count) for pixels that are finished before the next ones begin: all of them, or in
  // a contiguous output, unless sums wait between two chunks or are in another order, as many as leave together. Their sums for a
  // panel, 3 KiB, stay in the first-level cache beside the lines that they are written to.
  template <int64_t panel, class Body>
  SHORTHAUL_INLINE void for_each_group(int64_t chunk_values, const Body& body) const {
    constexpr int64_t leaving = panel * lanes < 768 ? 768 / panel / lanes * lanes : lanes;
    const bool is_one_chunk = runs * run_values <= chunk_values;
    const int64_t together = channels_last || !is_one_chunk || is_skipping() ? pixels : leaving;
    for (int64_t first = 0; first < pixels; first += together) {
      body(first, pixels - first < together ? pixels - first : together);
    }
  }

  // Whether taps are left out in this block.
  SHORTHAUL_INLINE bool is_skipping() const { return can_skip && classes.is_used; }

  // Calls body(first, count, runs) for pixels that add the same runs of a chunk.
  template <class Body>
  SHORTHAUL_INLINE void for_each_class(int64_t first, int64_t count, const Chunk& chunk, const Body& body) const {
    const Runs whole{window_runs + chunk.first_run, chunk.last_run - chunk.first_run, chunk.count};
    const int64_t number = is_skipping() ? classes.row_stretches * classes.column_stretches : 1;
    for (int64_t each = 0; each < number; ++each) {
      Runs chosen = whole;
      if (is_skipping()) {
        const Stretch& of_rows = classes.rows[each / classes.column_stretches];
        const Stretch& of_columns = classes.columns[each % classes.column_stretches];
        first = classes.first_pixel(of_rows, of_columns);
        count = of_rows.count() * of_columns.count();
        chosen = list_runs(of_rows.taps, of_columns.taps, chunk);
      }
      body(first, count, chosen);
    }
  }

  // The runs of a chunk that a class reads.
  Runs list_runs(Span kernel_rows, Span kernel_columns, const Chunk& chunk) const {
    const int64_t height = classes.kernel_height;
    int64_t number = 0;
    for (int64_t column = kernel_columns.begin; column < kernel_columns.end; ++column) {
      const int64_t begin = std::max(chunk.first_run, column * height + kernel_rows.begin);
      const int64_t end = std::min(chunk.last_run, column * height + kernel_rows.end);
      for (int64_t run = begin; run < end; ++run) class_runs[number++] = window_runs[run];
    }
    return {class_runs, number, chunk.count};
  }

  // Calls body(pixel, size) for tiles of at most `largest` of `count` pixels; of one output row each,
  // where their windows shall be at even steps.
  template <class Body>
  SHORTHAUL_INLINE void for_each_tile(int64_t first, int64_t count, int64_t largest, const Body& body) const {
    for (int64_t begin = first, end; begin < first + count; begin = end) {
      end = first + count;
      if (window_step != 0) end = std::min(end, (begin / row_pixels + 1) * row_pixels);
      balanced_tiles(end - begin, largest, [&](int64_t pixel, int64_t size) { body(begin + pixel, size); });
    }
  }

  // The sums of a group's pixel, counted in the order of the output; with classes, all are one group.
  SHORTHAUL_INLINE const real* sums_of(int64_t pixel, int64_t pitch) const {
    return stage + (is_skipping() ? places[pixel] : pixel) * pitch;
  }

  // Asks for the lines of contiguous planes that a group will be written to.
  SHORTHAUL_INLINE void prefetch_planes(int64_t first, int64_t count, const Target<value>& target, int64_t plane) const {
    if (is_skipping() || output_offsets[first + count - 1] != output_offsets[first] + count - 1) return;
    const value* line = target.output + target.channel * plane + output_offsets[first];
    for (int64_t channel = 0; channel < target.channels; ++channel, line += plane) {
      for (int64_t pixel = 0; pixel < count; pixel += 64 / int64_t{sizeof(value)}) __builtin_prefetch(line + pixel, 1);
      __builtin_prefetch(line + count - 1, 1);
    }
  }

  // One tile of the group that begins at `first`, over one chunk: sums come from the bias or the stage, and
  // go to the stage or, on the last chunk of a plain channels-last output, out.
  template <int rows, int vectors, class Activation>
  SHORTHAUL_INLINE void run_tile(int64_t pixel, int64_t first, const Chunk& chunk, const Runs& runs, const real* weights,
                                 const real* bias, const Target<value>& target) const {
    static constexpr vec zeros[vectors] = {};
    constexpr int64_t wide = vectors * lanes;
    const real* begin = chunk.depth > 0    ? stage + (pixel - first) * wide
                        : bias != nullptr ? bias
                                          : reinterpret_cast<const real*>(zeros);
    const auto sum_to = [&](auto out, auto* const* to) {
      // Nothing of this chunk is inside the image.
      if (can_skip && runs.number == 0) return begin_tile<decltype(out), rows, vectors>(begin, chunk.depth > 0 ? wide : 0, to);
      sum_tile<decltype(out), rows, vectors, run_length, window_step, can_skip>(
          begin, chunk.depth > 0 ? wide : 0, windows + chunk.begin, window_offsets + pixel,
          weights + steps_of(chunk.begin) * wide, runs, to);
    };
    if constexpr (channels_last && is_short<Activation>) {
      if (chunk.is_last && target.is_plain && target.channels == wide) {
        value* to[rows];
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) {
          // The lines that the sums will be written to come while the sums are made.
          to[row] = target.output + output_offsets[pixel + row] + target.channel;
          if (has_prefetch) {
#pragma GCC unroll 8
            for (int64_t byte = 0; byte < wide * int64_t{sizeof(value)}; byte += 64) {
              __builtin_prefetch(reinterpret_cast<const char*>(to[row]) + byte, 1);
            }
          }
        }
        return sum_to(Activated<Value, Activation>{}, to);
      }
    }
    real* to[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) to[row] = stage + (pixel - first + row) * wide;
    sum_to(AsReal{}, to);
    if (channels_last && chunk.is_last) finish_rows<Activation>(pixel, first, rows, wide, target);
  }

  // What is more than storing: an activation, a residual, a panel that is not full.
  template <class Activation>
  __attribute__((noinline)) void finish_rows(int64_t pixel, int64_t first, int64_t rows, int64_t pitch,
                                             const Target<value>& target) const {
    for (int64_t row = pixel; row < pixel + rows; ++row) {
      for (int64_t channel = 0; channel < target.channels; channel += lanes) {
        finish<Value, Activation>(target.output, target.residual,
                                  output_offsets[row] + target.channel + channel,
                                  load(stage + (row - first) * pitch + channel), target.channels - channel);
      }
    }
  }
};

}  // namespace shorthaul
