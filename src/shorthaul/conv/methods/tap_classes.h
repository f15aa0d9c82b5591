// Output pixels by the taps that read inside the image: the others would multiply the zeros of the padding.
#pragma once

#include <algorithm>

#include "shorthaul/conv/methods/geometry.h"

namespace shorthaul {

// The taps along one dimension, `dilation` apart from `start` on, that lie inside an image of `size`.
static inline Span inner_taps(int64_t start, int64_t size, int64_t taps, int64_t dilation) {
  const auto first_from = [&](int64_t position) {
    const int64_t distance = position - start;
    return distance <= 0 ? 0 : std::min(taps, (distance + dilation - 1) / dilation);
  };
  return {first_from(0), first_from(size)};
}

// Columns [begin, end) of a block, or rows in the order of their taps, that read the same taps.
struct Stretch {
  int64_t begin, end;
  Span taps;

  int64_t count() const { return end - begin; }
};

// A class is the pixels of a stretch of rows and a stretch of columns. Pixels are in the order of their
// classes, so that the columns at an edge, one below the other, fill tiles, and so do the same rows of
// several images.
struct TapClasses {
  int64_t* sorted_rows;
  int64_t* row_places;  // of each row of the block, in the order of taps
  Stretch* rows;
  Stretch* columns;
  int64_t row_stretches = 0, column_stretches = 0;
  int64_t outputs = 0, kernel_height = 0;  // columns of the block, rows of the kernel
  bool is_used = false;  // for all blocks of a call or none, so that no result depends on the blocks

  template <class Workspace>
  void take(bool skips_padding, const Workspace& at) {
    is_used = skips_padding;
    sorted_rows = at.sorted_rows, row_places = at.row_places;
    rows = at.row_stretches, columns = at.column_stretches;
  }

  // The classes of a block; all its pixels are one where none are used.
  void find(Span block, int64_t first_column, int64_t block_outputs, const Shape& shape, const Sizes& sizes) {
    outputs = block_outputs, kernel_height = shape.kernel_h;
    if (is_used) {
      find_columns(first_column, shape, sizes);
      find_rows(block, shape, sizes);
      return;
    }
    row_stretches = column_stretches = 1;
    rows[0] = {0, block.end - block.begin, {0, shape.kernel_h}};
    columns[0] = {0, outputs, {0, shape.kernel_w}};
    for (int64_t row = 0; row < rows[0].end; ++row) row_places[row] = row;
  }

  // Calls body(columns, pixel) for the columns of one row that are neighbors, and the first one's pixel.
  template <class Body>
  void for_each_part(int64_t row, const Body& body) const {
    const int64_t place = row_places[row];
    const Stretch* of_row = rows;
    while (of_row->end <= place) ++of_row;
    for (int64_t each = 0; each < column_stretches; ++each) {
      const Stretch& part = columns[each];
      body(Span{part.begin, part.end}, first_pixel(*of_row, part) + (place - of_row->begin) * part.count());
    }
  }

  int64_t first_pixel(const Stretch& of_rows, const Stretch& of_columns) const {
    return of_rows.begin * outputs + of_rows.count() * of_columns.begin;
  }

 private:
  // Adds `place` to the last of the stretches, or begins a new one.
  static void append(Stretch* stretches, int64_t& number, int64_t place, Span taps) {
    Stretch* last = stretches + number - 1;
    if (number > 0 && last->taps.begin == taps.begin && last->taps.end == taps.end) {
      last->end = place + 1;
    } else {
      stretches[number++] = {place, place + 1, taps};
    }
  }

  void find_columns(int64_t first_column, const Shape& shape, const Sizes& sizes) {
    column_stretches = 0;
    for (int64_t column = 0; column < outputs; ++column) {
      const int64_t start = (first_column + column) * shape.stride_w - sizes.padding_w;
      append(columns, column_stretches, column,
             inner_taps(start, sizes.in_w, shape.kernel_w, shape.dilation_w));
    }
  }

  void find_rows(Span block, const Shape& shape, const Sizes& sizes) {
    const auto taps_of = [&](int64_t row) {
      const OutputRow at(block.begin + row, sizes);
      const int64_t depth = at.depth * shape.stride_d - sizes.padding_d;
      if (depth < 0 || depth >= sizes.in_d) return Span{0, 0};
      return inner_taps(at.height * shape.stride_h - sizes.padding_h, sizes.in_h, shape.kernel_h, shape.dilation_h);
    };
    // Sorted as one number each, taps before place.
    const int64_t number = block.end - block.begin;
    for (int64_t row = 0; row < number; ++row) {
      const Span taps = taps_of(row);
      sorted_rows[row] = (taps.begin * (shape.kernel_h + 1) + taps.end) * number + row;
    }
    std::sort(sorted_rows, sorted_rows + number);
    row_stretches = 0;
    for (int64_t place = 0; place < number; ++place) {
      const int64_t row = sorted_rows[place] % number;
      row_places[row] = place;
      append(rows, row_stretches, place, taps_of(row));
    }
  }
};

}  // namespace shorthaul
