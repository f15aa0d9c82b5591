"""N-Triples, plain or gzipped: RDF as text, one triple a line.

>>> from shorthaul.graphs import RelationalGraph
>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "two.nt"
>>> _ = path.write_text('<a:Ada> <a:knows> <a:Bob> .  # a comment\\n<a:Ada> <a:age> "36" .\\n')
>>> graph = RelationalGraph.read(path)
>>> list(graph.node_names), [each.name for each in graph.relations]
(['a:Ada', 'a:Bob', '"36"'], ['a:knows', 'a:age'])

Subjects and objects are nodes, predicates are relations, both numbered as they first appear. IRIs are
named without their brackets, blank nodes `_:b`, literals in their quotes with language or datatype:
no two kinds can have the same name.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import torch

from shorthaul.errors import GraphFileError
from shorthaul.graphs.graph import RelationalGraph
from shorthaul.graphs.node_names import NodeNames
from shorthaul.graphs.readers.line_blocks import (
    BLOCK_BYTES,
    note_skipped,
    read_line_blocks,
    read_lines,
)
from shorthaul.graphs.readers.plain_readers import parse_plain_triples
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
from shorthaul.jit.runtime import kernel_threads

# In the order of `Problem` in n_triples.h.
PROBLEMS = (
    "",
    "expected a subject, <IRI> or _:blank",
    "expected a predicate, <IRI>",
    'expected an object, <IRI>, _:blank or "literal"',
    "expected a '.' after the object",
    "expected nothing but a comment after the '.'",
    "expected a '>' to end the IRI",
    "expected a character that an IRI may have",
    'expected an escape such as \\n, \\" or \\u00E9',
    "expected a '\"' to end the literal",
    "expected a language such as @en or @en-GB",
    "expected a datatype as ^^<IRI>",
    "expected a blank node such as _:b1",
)
_TEXT = r"""
// N-Triples -> numbered terms. A reader keeps the numbers between blocks; blocks that others read are
// added in the order of the file, so that terms are numbered as they first appear in it.
#include <algorithm>
#include <new>

#include "shorthaul/graphs/readers/n_triples.h"
#include "shorthaul/graphs/readers/name_table.h"

namespace {

struct Reader {
  shorthaul::n_triples::LineParser parser;
  shorthaul::NameTable nodes, relations;
  std::vector<int64_t> source, target, relation;
  int64_t lines = 0, malformed = 0, literals_left_out = 0;
  std::vector<int64_t> node_numbers, relation_numbers;  // here, of what another reader numbered
};

void append(std::vector<int64_t>& all, const std::vector<int64_t>& own, const std::vector<int64_t>& numbers) {
  const size_t known = all.size();
  if (known + own.size() > all.capacity()) all.reserve(2 * (known + own.size()));
  all.resize(known + own.size());
  for (size_t each = 0; each < own.size(); ++each) all[known + each] = numbers[own[each]];
}

Reader& reader_at(void* reader) { return *static_cast<Reader*>(reader); }

constexpr int64_t out_of_memory = -1;

}  // namespace

void* open_reader() { return new (std::nothrow) Reader; }

void close_reader(void* reader) { delete static_cast<Reader*>(reader); }

// Reads whole lines. Returns 0, or -1 without memory, or under `is_strict` the problem of the first
// malformed line; report = that line's number and column. Otherwise malformed lines are counted, and
// report holds the first.
int64_t read_block(void* state, const uint8_t* block, int64_t is_strict, int64_t keeps_literals,
                   int64_t* report, int64_t size) {
  Reader& reader = reader_at(state);
  const char* at = reinterpret_cast<const char*>(block);
  const char* const end = at + size;
  try {
    while (at < end) {
      const char* stop = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
      if (stop == nullptr) stop = end;
      const char* const next = stop == end ? end : stop + 1;
      if (stop > at && stop[-1] == '\r') --stop;
      ++reader.lines;
      auto& parser = reader.parser;
      if (parser.parse(std::string_view(at, static_cast<size_t>(stop - at)))) {
        if (parser.object.is_literal && !keeps_literals) {
          ++reader.literals_left_out;
        } else {
          reader.source.push_back(reader.nodes.number(parser.subject.text));
          reader.relation.push_back(reader.relations.number(parser.predicate.text));
          reader.target.push_back(reader.nodes.number(parser.object.text));
        }
      } else if (parser.problem != shorthaul::n_triples::none) {
        if (reader.malformed++ == 0) {
          report[0] = reader.lines;
          report[1] = parser.column();
        }
        if (is_strict) return parser.problem;
      }
      at = next;
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  return 0;
}

// Adds what `other` read of the lines that follow, and empties it. `report` is other's; the line in it
// becomes the file's, where it is the first malformed one. Returns 0, or -1 without memory.
int64_t add_block(void* state, void* other, const int64_t* report, int64_t* first_report) {
  Reader &all = reader_at(state), &own = reader_at(other);
  try {
    all.nodes.add_all(own.nodes, all.node_numbers);
    all.relations.add_all(own.relations, all.relation_numbers);
    append(all.source, own.source, all.node_numbers);
    append(all.target, own.target, all.node_numbers);
    append(all.relation, own.relation, all.relation_numbers);
  } catch (const std::bad_alloc&) {
    return out_of_memory;
  }
  if (all.malformed == 0 && own.malformed > 0) {
    first_report[0] = all.lines + report[0];
    first_report[1] = report[1];
  }
  all.lines += own.lines;
  all.malformed += own.malformed;
  all.literals_left_out += own.literals_left_out;
  own.nodes.clear();
  own.relations.clear();
  own.source.clear();
  own.target.clear();
  own.relation.clear();
  own.lines = own.malformed = own.literals_left_out = 0;
  return 0;
}

// triples, nodes, bytes of their names, relations, bytes of their names, malformed lines, literals
void read_sizes(void* state, int64_t* sizes) {
  const Reader& reader = reader_at(state);
  const int64_t found[] = {static_cast<int64_t>(reader.source.size()), reader.nodes.size(),
                           static_cast<int64_t>(reader.nodes.text.size()), reader.relations.size(),
                           static_cast<int64_t>(reader.relations.text.size()), reader.malformed,
                           reader.literals_left_out};
  std::copy(std::begin(found), std::end(found), sizes);
}

void copy_out(void* state, int64_t* source, int64_t* target, int64_t* relation, uint8_t* node_text,
              int64_t* node_offsets, uint8_t* relation_text, int64_t* relation_offsets) {
  const Reader& reader = reader_at(state);
  std::copy(reader.source.begin(), reader.source.end(), source);
  std::copy(reader.target.begin(), reader.target.end(), target);
  std::copy(reader.relation.begin(), reader.relation.end(), relation);
  std::copy(reader.nodes.text.begin(), reader.nodes.text.end(), node_text);
  std::copy(reader.nodes.offsets.begin(), reader.nodes.offsets.end(), node_offsets);
  std::copy(reader.relations.text.begin(), reader.relations.text.end(), relation_text);
  std::copy(reader.relations.offsets.begin(), reader.relations.offsets.end(), relation_offsets);
}
"""


def emit_n_triples_reader() -> CppSource:
    """The parser: a reader is opened, fed blocks of lines, copied out and closed."""

    def written(name: str, dtype: torch.dtype = torch.int64) -> TensorArgument:
        return TensorArgument(name, dtype, (None,), is_written=True)

    state = NumberArgument("state", "address")
    return CppSource(
        "n_triples_reader",
        _TEXT,
        (
            Function("open_reader", (), returns="address"),
            Function("close_reader", (NumberArgument("reader", "address"),)),
            Function(
                "read_block",
                (
                    state,
                    TensorArgument("block", torch.uint8, ("size",)),
                    NumberArgument("is_strict", "int64"),
                    NumberArgument("keeps_literals", "int64"),
                    written("report"),
                    DimensionArgument("size"),
                ),
                returns="int64",
            ),
            Function(
                "add_block",
                (
                    state,
                    NumberArgument("other", "address"),
                    TensorArgument("report", torch.int64, (2,)),
                    written("first_report"),
                ),
                returns="int64",
            ),
            Function("read_sizes", (state, written("sizes"))),
            Function(
                "copy_out",
                (
                    state,
                    *map(written, ("source", "target", "relation")),
                    written("node_text", torch.uint8),
                    written("node_offsets"),
                    written("relation_text", torch.uint8),
                    written("relation_offsets"),
                ),
            ),
        ),
    )


def read_n_triples(
    path: Path,
    *,
    strict: bool = True,
    literals: bool = True,
    index_dtype: torch.dtype | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> RelationalGraph:
    """The graph in an N-Triples file.

    `strict=False` passes over malformed lines, logs how many there were, and keeps the number as
    `skipped_lines`. `literals=False` leaves out triples whose object is a literal.
    """
    if not can_use_kernels("reading N-Triples"):
        return _read_plainly(path, strict, literals, index_dtype)
    with contextlib.ExitStack() as closing:
        whole = closing.enter_context(_Reader(path, strict, literals))
        threads = kernel_threads()
        idle = [closing.enter_context(_Reader(path, strict, literals)) for _ in range(threads)]
        # After the readers, so that whatever happens, its threads end before they are closed.
        pool = closing.enter_context(ThreadPoolExecutor(threads, "shorthaul-n-triples"))
        _read_side_by_side(whole, read_line_blocks(path, block_bytes), pool, idle)
        return _copy_out(whole, index_dtype)


class _Reader:
    """A reader of the kernel, closed at the end of a `with` block."""

    def __init__(self, path: Path, strict: bool, literals: bool) -> None:
        self.kernel = _kernel()
        self.path, self.strict, self.literals = path, strict, literals
        self.address = self.kernel.open_reader()
        if not self.address:
            raise MemoryError(f"{path}: no memory for a reader")
        # The first malformed line and its column.
        self.report = torch.zeros(2, dtype=torch.int64, device="cpu")
        self.problem = 0

    def read(self, block: torch.Tensor) -> _Reader:
        """Parse whole lines; without the GIL."""
        self.problem = self.kernel.read_block(
            self.address, block, self.strict, self.literals, self.report
        )
        return self

    def add(self, other: _Reader) -> None:
        """Take over what `other` read of the lines that follow, and its problem."""
        status = self.kernel.add_block(self.address, other.address, other.report, self.report)
        self.problem = status or other.problem

    def require_read(self) -> None:
        """Raise the problem of the last block, if it had one."""
        if self.problem < 0:
            raise MemoryError(f"{self.path}: the graph does not fit the memory")
        if self.problem:
            line, column = self.report.tolist()
            words = f"{PROBLEMS[self.problem]}, at column {column:,}."
            raise GraphFileError(self.path, line, words)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.kernel.close_reader(self.address)


def _read_side_by_side(
    whole: _Reader, blocks: Iterable[torch.Tensor], pool: Executor, idle: list[_Reader]
) -> None:
    """Parse as many blocks at a time as there are idle readers, and add them in their order.

    Even one at a time this takes less than reading into `whole`: the names of a block fit the cache, and
    in the table of all names only distinct ones are looked up, their slots fetched ahead.
    """
    under_way: deque[Future[_Reader]] = deque()

    def add_oldest() -> None:
        reader = under_way.popleft().result()
        whole.add(reader)
        whole.require_read()
        idle.append(reader)

    for block in blocks:
        if not idle:
            add_oldest()
        under_way.append(pool.submit(idle.pop().read, block))
    while under_way:
        add_oldest()


def _copy_out(reader: _Reader, index_dtype: torch.dtype | None) -> RelationalGraph:
    sizes = torch.empty(7, dtype=torch.int64, device="cpu")
    reader.kernel.read_sizes(reader.address, sizes)
    triples, nodes, node_bytes, relations, relation_bytes, malformed, _ = sizes.tolist()
    source, target, relation = (
        torch.empty(triples, dtype=torch.int64, device="cpu") for _ in range(3)
    )
    node_names, relation_names = (
        NodeNames(
            torch.empty(text, dtype=torch.uint8, device="cpu"),
            torch.empty(count + 1, dtype=torch.int64, device="cpu"),
        )
        for text, count in ((node_bytes, nodes), (relation_bytes, relations))
    )
    reader.kernel.copy_out(
        reader.address,
        *(source, target, relation, node_names.text, node_names.offsets),
        *(relation_names.text, relation_names.offsets),
    )
    note_skipped(reader.path, malformed, int(reader.report[0]))
    return RelationalGraph.from_edges(
        source,
        target,
        relation,
        relations=list(relation_names),
        node_names=node_names,
        index_dtype=index_dtype,
        skipped_lines=malformed,
    )


def _read_plainly(
    path: Path, strict: bool, literals: bool, index_dtype: torch.dtype | None
) -> RelationalGraph:
    found = parse_plain_triples(read_lines(path), literals=literals)
    if found.malformed:
        if strict:
            raise GraphFileError(path, found.malformed[0], "is no triple.")
        note_skipped(path, len(found.malformed), found.malformed[0])
    source, relation, target = (
        torch.tensor(found.triples, dtype=torch.int64, device="cpu").reshape(-1, 3).t()
    )
    return RelationalGraph.from_edges(
        source,
        target,
        relation,
        relations=list(found.relations),
        node_names=NodeNames.of(list(found.nodes)),
        index_dtype=index_dtype,
        skipped_lines=len(found.malformed),
    )


@functools.cache
def _kernel() -> Kernel:
    return load_kernel(emit_n_triples_reader())
