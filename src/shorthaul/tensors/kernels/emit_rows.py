"""Writing the kernels for rows in memory: copies of bytes, and sums of numbers.

All take addresses, checked by `host_kernels` beforehand, except for the ids, which are checked here:
a function returns -1, or the first position whose id is out of range, in which case it has written
nothing.
"""

from __future__ import annotations

import torch

from shorthaul.jit import CppSource, Function, NumberArgument, ThreadsArgument

_TABLE = "table* stride_bytes rows"
_IDS = "ids* id_bytes count"
_VALUES = f"{_TABLE} width scales* ids* count"  # int64: half as much to compile
_KINDS = {
    torch.float32: "AsReal",
    torch.float64: "AsReal",
    torch.float16: "AsFloat16",
    torch.bfloat16: "AsBfloat16",
    torch.int8: "AsInt8",
}

_COPY = """\
// Rows copied by their bytes, whatever is in them. Threads own runs of positions.
#include "shorthaul/tensors/kernels/rows.h"

using namespace shorthaul;

// out[i] = table[ids[i]]
int64_t gather_rows(PARAMETERS_gather_rows) {
  const char* start = static_cast<const char*>(table);
  char* to = static_cast<char*>(out);
  return with_ids(ids, id_bytes, rows, [&](auto list) {
    const auto copy = [&](auto streams_here) {
      return for_each_row(list, count, start, stride_bytes, row_bytes, threads, [&](int64_t id, int64_t at) {
        copy_row<streams_here>(to + at * row_bytes, start + id * stride_bytes, row_bytes);
      });
    };
    return streams ? copy(std::true_type{}) : copy(std::false_type{});
  });
}

// table[ids[i]] = source[i], in order, so that the last of equal ids wins. Threads own rows of the
// table and each looks at all ids: no two write to one row.
int64_t scatter_rows(PARAMETERS_scatter_rows) {
  char* start = static_cast<char*>(table);
  const char* from = static_cast<const char*>(source);
  return with_ids(ids, id_bytes, rows, [&](auto list) {
    const int64_t wrong = list.find_wrong(0, count);
    if (wrong >= 0) return wrong;
    parallel_for(rows, 1, worthwhile_threads(count * row_bytes, threads), [&](int64_t begin, int64_t end) {
      for (int64_t at = 0; at < count; ++at) {
        const int64_t id = list[at];
        if (id < begin || id >= end) continue;
        copy_row<false>(start + id * stride_bytes, from + at * row_bytes, row_bytes);
      }
    });
    return int64_t{-1};
  });
}

// out[targets[i]] = memory[positions[i]]: rows that were read from a file, to where they are wanted.
void place_rows(PARAMETERS_place_rows) {
  const char* from = static_cast<const char*>(memory);
  char* to = static_cast<char*>(out);
  const int64_t* source = static_cast<const int64_t*>(positions_bytes);
  const int64_t* target = static_cast<const int64_t*>(targets);
  const int64_t ahead = rows_ahead(row_bytes);
  parallel_for(count, 64, worthwhile_threads(count * row_bytes, threads), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      if (at + ahead < end) prefetch_row(from + source[at + ahead], row_bytes);
      copy_row<false>(to + target[at] * row_bytes, from + source[at], row_bytes);
    }
  });
}
"""

_SUMS = """\
// Rows stored as STORED_NAME and seen as SEEN_NAME: sums, scalar products, widened copies.
#define SHORTHAUL_REAL REAL_NAME
#include "shorthaul/tensors/kernels/sums.h"

using namespace shorthaul;
using Stored = STORED_KIND;
using Seen = SEEN_KIND;

namespace {

// Calls body(Table, Segments) unless an id is out of range; its position, or -1.
template <class Body>
int64_t with_segments(PARAMETERS_table, void* pointers, int64_t segments, const Body& body) {
  const Ids<int64_t> list{static_cast<const int64_t*>(ids), rows};
  const int64_t wrong = list.find_wrong(0, count);
  if (wrong >= 0) return wrong;
  body(Table<Stored>{static_cast<const char*>(table), stride_bytes, width, static_cast<const float*>(scales)},
       Segments<int64_t>{list, static_cast<const int64_t*>(pointers), segments});
  return -1;
}

}  // namespace

// out[s] = sum, mean or maximum over the segment of weights[e] * scale * table[ids[e]]
int64_t reduce_rows(PARAMETERS_reduce_rows) {
  const real* factors = static_cast<const real*>(weights);
  auto* to = static_cast<Seen::value*>(out);
  return with_segments(ARGUMENTS_table, pointers, segments, [&](const auto& of, const auto& parts) {
    const bool has_factor = scales != nullptr || weights != nullptr;
    if (is_max && has_factor) reduce_segments<Stored, Seen, Maximum, true>(of, parts, factors, false, to, threads);
    else if (is_max) reduce_segments<Stored, Seen, Maximum, false>(of, parts, factors, false, to, threads);
    else if (has_factor) reduce_segments<Stored, Seen, Sum, true>(of, parts, factors, is_mean != 0, to, threads);
    else reduce_segments<Stored, Seen, Sum, false>(of, parts, factors, is_mean != 0, to, threads);
  });
}

// out[e] = the scalar product of scale * table[ids[e]] and the gradient of its segment
int64_t multiply_rows(PARAMETERS_multiply_rows) {
  return with_segments(ARGUMENTS_table, pointers, segments, [&](const auto& of, const auto& parts) {
    multiply_segments<Stored, Seen>(of, parts, static_cast<const Seen::value*>(gradient), is_mean != 0,
                                    static_cast<real*>(out), threads);
  });
}

// out[i] = scale * table[ids[i]]
int64_t widen_rows(PARAMETERS_widen_rows) {
  const Table<Stored> of{static_cast<const char*>(table), stride_bytes, width, static_cast<const float*>(scales)};
  auto* to = static_cast<Seen::value*>(out);
  return for_each_row(Ids<int64_t>{static_cast<const int64_t*>(ids), rows}, count, of.start, stride_bytes,
                      of.row_bytes(), threads,
                      [&](int64_t id, int64_t at) { widen_row<Stored, Seen>(of, id, to + at * width); });
}
"""

_LINEAR = """\
// Rows stored as STORED_NAME and seen as SEEN_NAME, times a matrix: gathered a tile at a time.
#define SHORTHAUL_REAL REAL_NAME
#include "shorthaul/tensors/kernels/linear.h"

using namespace shorthaul;
using Stored = STORED_KIND;
using Seen = SEEN_KIND;

// out[i] = table[ids[i]] @ weight.T + bias; `workspace` holds packed weights, bias and a tile per thread
int64_t multiply_matrix(PARAMETERS_multiply_matrix) {
  const Ids<int64_t> list{static_cast<const int64_t*>(ids), rows};
  const int64_t wrong = list.find_wrong(0, count);
  if (wrong >= 0) return wrong;
  const Table<Stored> of{static_cast<const char*>(table), stride_bytes, width, static_cast<const float*>(scales)};
  real* packed = static_cast<real*>(workspace);
  const int64_t panel_outputs = Weights<Seen>::panels_of(outputs) * panel;
  const Weights<Seen> weights{packed, packed + panel_outputs * width, outputs};
  weights.pack(static_cast<const Seen::value*>(weight), static_cast<const Seen::value*>(bias), width);
  real* tiles = packed + Weights<Seen>::reals(outputs, width);
  on_each_thread(worthwhile_threads(count * (of.row_bytes() + width * outputs / 8), threads), [&](int64_t thread, int64_t team) {
    const int64_t begin = count * thread / team, end = count * (thread + 1) / team;
    multiply_tiles(of, list, weights, static_cast<Seen::value*>(out), begin, end, tiles + thread * tile_rows * width, tile_rows);
  });
  return -1;
}
"""


def emit_row_copies() -> CppSource:
    """The kernel with `gather_rows`, `scatter_rows` and `place_rows`, for rows of any bytes."""
    functions = (
        _function("gather_rows", f"{_TABLE} row_bytes {_IDS} out* streams", "int64"),
        _function("scatter_rows", f"{_TABLE} row_bytes {_IDS} source*", "int64"),
        _function("place_rows", "memory* positions_bytes* targets* count row_bytes out*"),
    )
    text = "#include <type_traits>\n" + _COPY
    return CppSource("rows_copy", _with_parameters(text, functions), functions)


def emit_row_sums(stored: torch.dtype, seen: torch.dtype) -> CppSource:
    """The kernel with `reduce_rows`, `multiply_rows` and `widen_rows` for one pair of dtypes."""
    functions = (
        _function(
            "reduce_rows", f"{_VALUES} pointers* segments weights* is_max is_mean out*", "int64"
        ),
        _function("multiply_rows", f"{_VALUES} pointers* segments gradient* is_mean out*", "int64"),
        _function("widen_rows", f"{_VALUES} out*", "int64"),
    )
    return _emit_for(stored, seen, "sum", _SUMS, functions)


def emit_row_products(stored: torch.dtype, seen: torch.dtype) -> CppSource:
    """The kernel with `multiply_matrix` for one pair of dtypes."""
    arguments = f"{_VALUES} weight* bias* outputs workspace* tile_rows out*"
    functions = (_function("multiply_matrix", arguments, "int64"),)
    return _emit_for(stored, seen, "linear", _LINEAR, functions)


def _emit_for(
    stored: torch.dtype, seen: torch.dtype, what: str, text: str, functions: tuple[Function, ...]
) -> CppSource:
    names = [str(each).removeprefix("torch.") for each in (stored, seen)]
    table = _function("table", _VALUES, "int64").arguments[:-1]
    for word, meaning in (
        ("PARAMETERS_table", ", ".join(each.declaration() for each in table)),
        ("ARGUMENTS_table", ", ".join(each.name for each in table)),
        ("STORED_NAME", names[0]),
        ("SEEN_NAME", names[1]),
        ("REAL_NAME", "double" if seen is torch.float64 else "float"),
        ("STORED_KIND", _KINDS[stored]),
        ("SEEN_KIND", _KINDS[seen]),
    ):
        text = text.replace(word, meaning)
    return CppSource(f"rows_{what}_{'_'.join(names)}", _with_parameters(text, functions), functions)


def _with_parameters(text: str, functions: tuple[Function, ...]) -> str:
    for each in functions:
        parameters = each.prototype().partition("(")[2].rpartition(")")[0]
        text = text.replace(f"PARAMETERS_{each.name}", parameters)
    return text


def _function(name: str, arguments: str, returns: str = "nothing") -> Function:
    """`arguments` as words; those that end in `*` are addresses. The thread count follows."""
    numbers = tuple(
        NumberArgument(word.rstrip("*"), "address" if word.endswith("*") else "int64")
        for word in arguments.split()
    )
    return Function(name, (*numbers, ThreadsArgument()), returns)
