"""Lines of whole numbers -> a tensor with a row for each line.

Fields are parted by commas, tabs, semicolons or spaces, in any mixture; blank lines and lines that
begin with # or % are passed over.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shorthaul.errors import GraphFileError
from shorthaul.graphs.readers.line_blocks import (
    BLOCK_BYTES,
    note_skipped,
    read_line_blocks,
    read_lines,
)
from shorthaul.graphs.readers.plain_readers import parse_plain_rows
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    can_use_kernels,
    load_kernel,
)

_MISSING, _NOT_WHOLE, _TOO_LARGE, _TOO_MANY = 1, 2, 3, 4
_TEXT = r"""
// Lines of whole numbers. slots[f] = the column of a row that field f goes to, or -1 to pass over it.
namespace {

bool is_gap(char each) { return each == ' ' || each == '\t' || each == ',' || each == ';' || each == '\r'; }

enum Problem : int64_t { none = 0, missing_field = 1, not_whole = 2, too_large = 3, too_many_fields = 4 };

// At a field of a line that ends at `end`; moves past it.
Problem read_whole(const char*& at, const char* end, int64_t& value) {
  const bool is_negative = *at == '-';
  if (is_negative || *at == '+') ++at;
  if (at == end || *at < '0' || *at > '9') return not_whole;
  uint64_t magnitude = 0;
  for (; at < end && *at >= '0' && *at <= '9'; ++at) {
    if (magnitude > (INT64_MAX - 9) / 10) return too_large;
    magnitude = magnitude * 10 + static_cast<uint64_t>(*at - '0');
  }
  if (at < end && !is_gap(*at)) return not_whole;
  value = is_negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return none;
}

// Columns are `capacity` numbers apart, so that each of them is a vector of its own.
Problem read_line(const char* at, const char* end, const int64_t* slots, int64_t fields, int64_t* row,
                  int64_t capacity, int64_t& field) {
  for (field = 0; field < fields; ++field) {
    while (at < end && is_gap(*at)) ++at;
    if (at == end) return missing_field;
    if (slots[field] < 0) {
      while (at < end && !is_gap(*at)) ++at;
    } else if (const Problem problem = read_whole(at, end, row[slots[field] * capacity])) {
      return problem;
    }
  }
  while (at < end && is_gap(*at)) ++at;
  return at == end ? none : too_many_fields;
}

}  // namespace

// report = rows written, lines read, malformed lines, and of the first of them line, field, problem.
void read_rows(const uint8_t* block, const int64_t* slots, int64_t is_strict, int64_t* rows,
               int64_t* report, int64_t size, int64_t fields, int64_t capacity) {
  const char* at = reinterpret_cast<const char*>(block);
  const char* const end = at + size;
  int64_t* row = rows;
  while (at < end) {
    const char* stop = at;
    while (stop < end && *stop != '\n') ++stop;
    ++report[1];
    const char* first = at;
    while (first < stop && is_gap(*first)) ++first;
    if (first < stop && *first != '#' && *first != '%') {
      int64_t field = 0;
      if (const Problem problem = read_line(first, stop, slots, fields, row, capacity, field)) {
        if (report[2]++ == 0) {
          report[3] = report[1];
          report[4] = field;
          report[5] = problem;
        }
        if (is_strict) break;
      } else {
        ++row;
        ++report[0];
      }
    }
    at = stop == end ? end : stop + 1;
  }
}
"""


@dataclass(frozen=True)
class IntegerRows:
    """The numbers of a file, and how many malformed lines were passed over."""

    rows: torch.Tensor  # (lines, columns) int64, each column contiguous
    skipped_lines: int


def emit_integer_reader() -> CppSource:
    """The kernel: `read_rows` for one block of whole lines."""
    return CppSource(
        "integer_rows",
        _TEXT,
        (
            Function(
                "read_rows",
                (
                    TensorArgument("block", torch.uint8, ("size",)),
                    TensorArgument("slots", torch.int64, ("fields",)),
                    NumberArgument("is_strict", "int64"),
                    TensorArgument("rows", torch.int64, (None, "capacity"), is_written=True),
                    TensorArgument("report", torch.int64, (6,), is_written=True),
                    *map(DimensionArgument, ("size", "fields", "capacity")),
                ),
            ),
        ),
    )


def read_integer_rows(
    path: Path,
    columns: Sequence[str | None],
    *,
    has_header: bool = False,
    strict: bool = True,
    block_bytes: int = BLOCK_BYTES,
) -> IntegerRows:
    """The fields of every line that `columns` names, in that order; `None` passes over a field.

    `has_header` passes over the first line, whatever it holds.
    """
    if not can_use_kernels("reading lines of numbers"):
        return _read_plainly(path, columns, has_header, strict)
    kept = [name for name in columns if name is not None]
    slots = torch.tensor(
        [-1 if name is None else kept.index(name) for name in columns],
        dtype=torch.int64,
        device="cpu",
    )
    pieces = [torch.empty(len(kept), 0, dtype=torch.int64, device="cpu")]
    report = torch.zeros(6, dtype=torch.int64, device="cpu")
    for number, whole in enumerate(read_line_blocks(path, block_bytes)):
        block = whole
        if number == 0 and has_header:
            end = whole.numpy().tobytes().find(b"\n")
            block = whole[end + 1 :] if end >= 0 else whole[:0]
            report[1] += 1
        # A field takes two bytes at least, with what parts it from the next.
        most_rows = block.numel() // (2 * len(columns)) + 1
        rows = torch.empty(len(kept), most_rows, dtype=torch.int64, device="cpu")
        before = int(report[0])
        _kernel().read_rows(block, slots, strict, rows, report)
        if strict and int(report[2]):
            raise GraphFileError(path, int(report[3]), _describe(report.tolist(), columns))
        pieces.append(rows[:, : int(report[0]) - before])
    note_skipped(path, int(report[2]), int(report[3]))
    return IntegerRows(torch.cat(pieces, dim=1).t(), int(report[2]))


def _read_plainly(
    path: Path, columns: Sequence[str | None], has_header: bool, strict: bool
) -> IntegerRows:
    lines = read_lines(path)
    rows: list[list[int]] = []
    malformed: list[int] = []
    for number, row in parse_plain_rows(lines, columns):
        if has_header and number == 1:
            continue
        if row is not None:
            rows.append(row)
        elif strict:
            raise GraphFileError(path, number, f"expected {len(columns)} fields of whole numbers.")
        else:
            malformed.append(number)
    note_skipped(path, len(malformed), malformed[0] if malformed else 0)
    width = sum(name is not None for name in columns)
    return IntegerRows(
        torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, width), len(malformed)
    )


def _describe(report: list[int], columns: Sequence[str | None]) -> str:
    field, problem = report[4], report[5]
    names = " ".join("(anything)" if name is None else name for name in columns)
    if problem == _TOO_MANY:
        return (
            f"expected {len(columns)} fields ({names}), got more.\n"
            "  Name every field in `columns=`, with None for one to pass over."
        )
    if problem == _MISSING:
        return f"expected {len(columns)} fields ({names}), got {field}."
    wanted = "a number below 2**63" if problem == _TOO_LARGE else "a whole number"
    return f"expected {wanted} as its {columns[field]}, field {field + 1}."


@functools.cache
def _kernel() -> Kernel:
    return load_kernel(emit_integer_reader())
