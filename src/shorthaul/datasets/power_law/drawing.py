"""Edges, labels and features of a power-law graph, each a function of the seed and its own number.

Nothing depends on what was drawn before, so any chunk, on any number of threads, has the same numbers. All is
integer arithmetic, or exact in float32: the same bits on every machine.

>>> recipe = Recipe(nodes=1000, relations=1, skew=2, classes=5, width=4, seed=0)
>>> [each.tolist() for each in draw_edges(recipe, 7, 3)[:2]]
[[795, 652, 33], [633, 732, 367]]
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shorthaul.graphs.sampling.plain import GOLDEN, RandomStream, mix
from shorthaul.graphs.sampling.streams import as_signed, choose_key
from shorthaul.jit import (
    CppSource,
    DimensionArgument,
    Function,
    Kernel,
    NumberArgument,
    TensorArgument,
    ThreadsArgument,
    can_use_kernels,
    load_kernel,
)

_MASK = 2**64 - 1
_ROUNDS = 4

_TEXT = r"""
// A graph whose degrees follow a power law: edge, label and row are functions of the key and a number.
#include "shorthaul/graphs/sampling/random.h"
#include "shorthaul/jit/include/parallel.h"

namespace {

using shorthaul::golden_ratio;
using shorthaul::mix;
using shorthaul::RandomStream;

uint64_t high(uint64_t one, uint64_t other) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(one) * other) >> 64);
}

// Ranks to ids, one to one: a Feistel network over an even number of bits, walked until it is an id.
struct Shuffle {
  uint64_t key, nodes;
  int64_t half_bits;

  uint64_t operator()(uint64_t value) const {
    const uint64_t half = (uint64_t{1} << half_bits) - 1;
    do {
      uint64_t left = value >> half_bits, right = value & half;
      for (uint64_t round = 0; round < 4; ++round) {
        const uint64_t scattered = mix(key ^ mix(right + golden_ratio * (round + 1))) & half;
        const uint64_t next = left ^ scattered;
        left = right;
        right = next;
      }
      value = left << half_bits | right;
    } while (value >= nodes);
    return value;
  }
};

// The rank of the node that an edge ends at: u^skew of all of them, u even on [0, 1).
uint64_t choose_rank(uint64_t random, uint64_t nodes, int64_t skew) {
  uint64_t share = random;
  for (int64_t power = 1; power < skew; ++power) share = high(share, random);
  return high(share, nodes);
}

}  // namespace

void draw_edges(int64_t* source, int64_t* target, int64_t* relation, int64_t first, int64_t nodes,
                int64_t relations, int64_t skew, int64_t half_bits, int64_t key, int64_t edges, int64_t threads) {
  const uint64_t own = static_cast<uint64_t>(key), count = static_cast<uint64_t>(nodes);
  const Shuffle shuffle{mix(own), count, half_bits};
  shorthaul::parallel_for(edges, 4096, threads, [&](int64_t begin, int64_t end) {
    for (int64_t edge = begin; edge < end; ++edge) {
      RandomStream stream(own, static_cast<uint64_t>(first + edge));
      source[edge] = static_cast<int64_t>(shuffle(choose_rank(stream.next(), count, skew)));
      target[edge] = static_cast<int64_t>(shuffle(choose_rank(stream.next(), count, skew)));
      relation[edge] = static_cast<int64_t>(high(stream.next(), static_cast<uint64_t>(relations)));
    }
  });
}

// The class of each node, and a number of 64 bits that says what it is used for.
void draw_labels(int64_t* labels, int64_t* purposes, int64_t first, int64_t classes, int64_t key, int64_t nodes,
                 int64_t threads) {
  shorthaul::parallel_for(nodes, 4096, threads, [&](int64_t begin, int64_t end) {
    for (int64_t node = begin; node < end; ++node) {
      RandomStream stream(static_cast<uint64_t>(key), static_cast<uint64_t>(first + node));
      labels[node] = static_cast<int64_t>(high(stream.next(), static_cast<uint64_t>(classes)));
      purposes[node] = static_cast<int64_t>(stream.next() >> 1);
    }
  });
}

// Even on [-1, 1) in steps of 2^-23, and one more in the column of the node's class.
void draw_rows(float* rows, const int64_t* labels, int64_t first, int64_t key, int64_t nodes, int64_t width,
               int64_t threads) {
  shorthaul::parallel_for(nodes, 64, threads, [&](int64_t begin, int64_t end) {
    for (int64_t node = begin; node < end; ++node) {
      RandomStream stream(static_cast<uint64_t>(key), static_cast<uint64_t>(first + node));
      float* const row = rows + node * width;
      for (int64_t column = 0; column < width; column += 2) {
        const uint64_t bits = stream.next();
        row[column] = static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
        if (column + 1 < width) row[column + 1] = static_cast<float>(bits >> 8 & 0xFFFFFF) * 0x1p-23f - 1.0f;
      }
      if (width > 0) row[labels[node] % width] += 1.0f;
    }
  });
}
"""


@dataclass(frozen=True)
class Recipe:
    """All that the numbers depend on."""

    nodes: int
    relations: int
    skew: int
    classes: int
    width: int
    seed: int

    def key(self, purpose: int) -> int:
        """What the numbers for one purpose are drawn from."""
        return choose_key(self.seed, purpose)

    @property
    def half_bits(self) -> int:
        """Of the numbers that ids are shuffled among."""
        return max(1, -(-max(1, self.nodes - 1).bit_length() // 2))


EDGES, LABELS, ROWS = range(3)  # purposes


class DrawnEdges(NamedTuple):
    """Some edges."""

    source: torch.Tensor
    target: torch.Tensor
    relation: torch.Tensor


def draw_edges(recipe: Recipe, first: int, count: int) -> DrawnEdges:
    """`count` edges from number `first` on."""
    if not can_use_kernels("power-law graphs"):
        return draw_edges_plainly(recipe, first, count)
    drawn = DrawnEdges(*torch.empty(3, count, dtype=torch.int64, device="cpu"))
    _kernel().draw_edges(
        *drawn,
        first,
        recipe.nodes,
        recipe.relations,
        recipe.skew,
        recipe.half_bits,
        as_signed(recipe.key(EDGES)),
    )
    return drawn


def draw_labels(recipe: Recipe, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The classes of `count` nodes from `first` on, and for each a number below 2^63, drawn evenly."""
    if not can_use_kernels("power-law graphs"):
        return draw_labels_plainly(recipe, first, count)
    labels, purposes = torch.empty(2, count, dtype=torch.int64, device="cpu")
    _kernel().draw_labels(labels, purposes, first, recipe.classes, as_signed(recipe.key(LABELS)))
    return labels, purposes


def draw_rows(recipe: Recipe, first: int, count: int) -> torch.Tensor:
    """(count, width) float32: the features of the nodes from `first` on."""
    labels, _ = draw_labels(recipe, first, count)
    if not can_use_kernels("power-law graphs"):
        return draw_rows_plainly(recipe, first, labels)
    rows = torch.empty(count, recipe.width, dtype=torch.float32, device="cpu")
    _kernel().draw_rows(rows, labels, first, as_signed(recipe.key(ROWS)))
    return rows


def draw_edges_plainly(recipe: Recipe, first: int, count: int) -> DrawnEdges:
    """The same in plain Python: the kernel's oracle, and the way without a compiler."""
    key = recipe.key(EDGES)
    found = []
    for edge in range(first, first + count):
        stream = RandomStream(key, edge)
        ends = [_shuffle(recipe, mix(key), _choose_rank(recipe, stream.next())) for _ in range(2)]
        found.append((*ends, stream.next() * recipe.relations >> 64))
    return DrawnEdges(*torch.tensor(found, dtype=torch.int64, device="cpu").reshape(-1, 3).T)


def draw_labels_plainly(
    recipe: Recipe, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain Python."""
    key, pairs = recipe.key(LABELS), []
    for node in range(first, first + count):
        stream = RandomStream(key, node)
        pairs.append((stream.next() * recipe.classes >> 64, stream.next() >> 1))
    labels, purposes = torch.tensor(pairs, dtype=torch.int64, device="cpu").reshape(-1, 2).T
    return labels, purposes


def draw_rows_plainly(recipe: Recipe, first: int, labels: torch.Tensor) -> torch.Tensor:
    """The same in plain Python."""
    key, width = recipe.key(ROWS), recipe.width
    rows = torch.empty(len(labels), width, dtype=torch.float32, device="cpu")
    for at, label in enumerate(labels.tolist()):
        stream = RandomStream(key, first + at)
        words = [stream.next() for _ in range(-(-width // 2))]
        whole = [each for word in words for each in (word >> 40, word >> 8 & 0xFFFFFF)]
        rows[at] = torch.tensor(whole[:width], dtype=torch.float32, device="cpu") * 2.0**-23 - 1
        if width:
            rows[at, label % width] += 1
    return rows


def _choose_rank(recipe: Recipe, random: int) -> int:
    share = random
    for _ in range(1, recipe.skew):
        share = share * random >> 64
    return share * recipe.nodes >> 64


def _shuffle(recipe: Recipe, key: int, value: int) -> int:
    bits = recipe.half_bits
    half = 2**bits - 1
    while True:
        left, right = value >> bits, value & half
        for number in range(_ROUNDS):
            scattered = mix(key ^ mix((right + GOLDEN * (number + 1)) & _MASK)) & half
            left, right = right, left ^ scattered
        value = left << bits | right
        if value < recipe.nodes:
            return value


def emit_drawing() -> CppSource:
    """The three kernels."""

    def written(name: str, *shape: str, of: torch.dtype = torch.int64) -> TensorArgument:
        return TensorArgument(name, of, shape, is_written=True)

    def numbers(words: str) -> tuple[NumberArgument, ...]:
        return tuple(NumberArgument(each, "int64") for each in words.split())

    return CppSource(
        "power_law_graph",
        _TEXT,
        (
            Function(
                "draw_edges",
                (
                    *(written(each, "edges") for each in ("source", "target", "relation")),
                    *numbers("first nodes relations skew half_bits key"),
                    DimensionArgument("edges"),
                    ThreadsArgument(),
                ),
            ),
            Function(
                "draw_labels",
                (
                    written("labels", "nodes"),
                    written("purposes", "nodes"),
                    *numbers("first classes key"),
                    DimensionArgument("nodes"),
                    ThreadsArgument(),
                ),
            ),
            Function(
                "draw_rows",
                (
                    written("rows", "nodes", "width", of=torch.float32),
                    TensorArgument("labels", torch.int64, ("nodes",)),
                    *numbers("first key"),
                    DimensionArgument("nodes"),
                    DimensionArgument("width"),
                    ThreadsArgument(),
                ),
            ),
        ),
    )


@functools.cache
def _kernel() -> Kernel:
    return load_kernel(emit_drawing())
