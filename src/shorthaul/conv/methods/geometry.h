// Where things are: shapes that a kernel is specialized on, sizes that it is told at run time.
#pragma once

#include <cstdint>

namespace shorthaul {

// Specialized kernels have a constexpr Shape, general ones fill it from their arguments: the same
// text serves both. Channels are those of one group.
struct Shape {
  int64_t in_channels, out_channels, groups;
  int64_t kernel_d, kernel_h, kernel_w;
  int64_t stride_d, stride_h, stride_w;
  int64_t dilation_d, dilation_h, dilation_w;

  // Rows of the image under one window; depth and height are flattened into one.
  constexpr int64_t window_rows() const { return kernel_d * kernel_h; }
  // Values of one packed image column: every window row, all channels of the group.
  constexpr int64_t column_values() const { return window_rows() * in_channels; }
  // Windows that do not touch leave columns unread: those are not packed.
  constexpr bool skips_columns() const { return kernel_w < stride_w && dilation_w == 1; }
  // Packed columns between the windows of neighboring outputs.
  constexpr int64_t column_step() const { return skips_columns() ? kernel_w : stride_w; }
  // Packed columns under `outputs` neighboring windows.
  constexpr int64_t columns(int64_t outputs) const {
    return (outputs - 1) * column_step() + (kernel_w - 1) * dilation_w + 1;
  }
  constexpr int64_t window_values() const { return kernel_w * column_values(); }
};

// Sizes of one call. A phase of a strided gradient writes every step-th output, from `first` on.
struct Sizes {
  int64_t batch;
  int64_t in_d, in_h, in_w;
  int64_t out_d, out_h, out_w;
  int64_t padding_d, padding_h, padding_w;
  int64_t padding_mode;
  int64_t full_d, full_h, full_w;
  int64_t step_d, step_h, step_w;
  int64_t first_d, first_h, first_w;

  int64_t rows() const { return batch * out_d * out_h; }
  int64_t in_plane() const { return in_d * in_h * in_w; }
  int64_t out_plane() const { return full_d * full_h * full_w; }
};

enum PaddingMode : int64_t { zeros = 0, reflect = 1, replicate = 2, circular = 3, symmetric = 4 };

// Where a padded position comes from; -1 for a zero.
static inline int64_t source_index(int64_t position, int64_t size, int64_t mode) {
  if (position >= 0 && position < size) return position;
  switch (mode) {
    case reflect: return position < 0 ? -position : 2 * (size - 1) - position;
    case replicate: return position < 0 ? 0 : size - 1;
    case circular: return (position % size + size) % size;
    case symmetric: return position < 0 ? -position - 1 : 2 * size - 1 - position;
    default: return -1;
  }
}

struct Span {
  int64_t begin, end;
};

// Part `part` of `total` when it is cut into parts of at most `most` that differ by at most one, so that
// threads with as many parts have as much to do.
static inline Span even_part(int64_t total, int64_t most, int64_t part) {
  const int64_t parts = (total + most - 1) / most;
  return {total * part / parts, total * (part + 1) / parts};
}

// The outputs along one dimension whose windows, `reach` long, lie inside the image.
static inline Span inner_outputs(int64_t size, int64_t reach, int64_t stride, int64_t padding) {
  const int64_t room = size + padding - reach;
  return {padding < 0 ? 0 : (padding + stride - 1) / stride, room < 0 ? 0 : room / stride + 1};
}

// One output row: which image it belongs to, and where it is in it.
struct OutputRow {
  int64_t image, depth, height;

  OutputRow(int64_t row, const Sizes& sizes)
      : image(row / (sizes.out_d * sizes.out_h)),
        depth(row / sizes.out_h % sizes.out_d),
        height(row % sizes.out_h) {}

  // Position of the row's column `column` in its plane of the whole output.
  int64_t position(int64_t column, const Sizes& sizes) const {
    return ((depth * sizes.step_d + sizes.first_d) * sizes.full_h +
            height * sizes.step_h + sizes.first_h) * sizes.full_w +
           column * sizes.step_w + sizes.first_w;
  }
};

// The image row under window row `window_row` of an output row, as an offset in rows; -1 for zeros.
static inline int64_t source_row(const OutputRow& row, int64_t window_row, const Shape& shape,
                                 const Sizes& sizes) {
  const int64_t depth = source_index(
      row.depth * shape.stride_d + window_row / shape.kernel_h * shape.dilation_d -
          sizes.padding_d,
      sizes.in_d, sizes.padding_mode);
  const int64_t height = source_index(
      row.height * shape.stride_h + window_row % shape.kernel_h * shape.dilation_h -
          sizes.padding_h,
      sizes.in_h, sizes.padding_mode);
  return depth < 0 || height < 0 ? -1 : depth * sizes.in_h + height;
}

// The image column under packed column `column`, counted from the first window of the row.
static inline int64_t source_column(int64_t column, const Shape& shape, const Sizes& sizes) {
  const int64_t position =
      shape.skips_columns()
          ? column / shape.kernel_w * shape.stride_w + column % shape.kernel_w
          : column;
  return source_index(position - sizes.padding_w, sizes.in_w, sizes.padding_mode);
}

// A task of a thread: a group, and a place of an image for it.
struct GroupTask {
  int64_t group, place;
};

// Groups of a channels-last image share its cache lines, and follow each other. Of a contiguous one all places of a
// group do, so that threads write to planes of their own: other rows of the same plane would be fetched ahead from
// the thread that writes them.
template <bool channels_last>
static inline GroupTask find_group_task(int64_t task, int64_t tasks_of_image, int64_t groups) {
  if (channels_last) return {task % groups, task / groups};
  const int64_t places = tasks_of_image / groups, here = task % tasks_of_image;
  return {here / places, task / tasks_of_image * places + here % places};
}

}  // namespace shorthaul
