"""Of which relations an owner sends averages and not rows: those where that is fewer bytes.

A layer that adds up what a target hears through a relation cannot tell its sources from their average:
`a + b + c` is three times `(a + b + c) / 3`. An owner may therefore send one average for each target and
relation in place of the rows that go into it. Rows that several relations read are sent once, so
the relations of an owner are chosen together.

>>> sources = torch.tensor([7, 8, 9, 7, 7, 8])
>>> relations = torch.tensor([0, 0, 0, 1, 1, 1])
>>> targets = torch.tensor([0, 0, 0, 1, 2, 3])
>>> choose_averaged(sources, relations, targets)  # one average of three rows, but three of two
tensor([], dtype=torch.int64)
>>> choose_averaged(sources[:4], relations[:4], targets[:4])  # rows 8 and 9 are for one target alone
tensor([0])
"""

from __future__ import annotations

import torch


def choose_averaged(
    sources: torch.Tensor, relations: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The relations whose averages are sent, ascending; the edges are those from one owner to one rank.

    Choosing is a search in two directions, from rows of all relations and from averages of all, and
    the cheaper end is taken; where both cost the same, rows are.
    """
    if len(relations) == 0:
        return relations.long()
    numbers, relation = torch.unique(relations, return_inverse=True)
    count = len(numbers)
    rows, source = torch.unique(sources, return_inverse=True)
    pairs = torch.unique(relation * len(rows) + source)
    one, row = pairs // len(rows), pairs % len(rows)
    heard = torch.unique(relation * (int(targets.max()) + 1) + targets)
    averages = torch.bincount(heard // (int(targets.max()) + 1), minlength=count)
    fewer = _take_rows_out(one, row, averages)
    more = _put_rows_in(one, row, averages)

    def cost(by_rows: torch.Tensor) -> int:
        return len(torch.unique(row[by_rows[one]])) + int(averages[~by_rows].sum())

    is_averaged = ~min(fewer, more, key=cost)
    averaged: torch.Tensor = numbers[is_averaged]
    return averaged


def _take_rows_out(one: torch.Tensor, row: torch.Tensor, averages: torch.Tensor) -> torch.Tensor:
    """Begin with rows for all relations, and leave out whichever saves most, while any does."""
    by_rows = torch.ones_like(averages, dtype=torch.bool)
    while True:
        read = by_rows[one]
        readers = torch.bincount(row[read], minlength=int(row.max()) + 1)
        alone = torch.bincount(one[read & (readers[row] == 1)], minlength=len(averages))
        saved = torch.where(by_rows, alone - averages, -1)
        best = int(saved.argmax())
        if saved[best] <= 0:
            return by_rows
        by_rows[best] = False


def _put_rows_in(one: torch.Tensor, row: torch.Tensor, averages: torch.Tensor) -> torch.Tensor:
    """Begin with averages for all relations, and add the rows of whichever saves most, while any does."""
    by_rows = torch.zeros_like(averages, dtype=torch.bool)
    while True:
        read = by_rows[one]
        readers = torch.bincount(row[read], minlength=int(row.max()) + 1)
        added = torch.bincount(one[~read & (readers[row] == 0)], minlength=len(averages))
        saved = torch.where(by_rows, -1, averages - added)
        best = int(saved.argmax())
        if saved[best] < 0:
            return by_rows
        by_rows[best] = True
