"""Which edges read an average that their source's owner makes, and which the source's row: the fewer travel.

A layer that adds up what a target hears through a relation cannot tell its sources from their average:
`a + b + c` is three times `(a + b + c) / 3`. Every edge from one rank to another needs one of the two
to travel: its source's row, which all edges of that source then read, or the average of what its
target hears through its relation and gets no row of. Rows and averages are the two sides of a bipartite
graph, and what travels covers its edges::

    sources   7   8   9        row 7 covers the edges to b and c,
              |\\  |   |        the average of 8 and 9 those to a:
    targets   | \\_a_ /         two travel in place of three rows
             b,c

>>> sources = torch.tensor([8, 9, 7, 7, 7])
>>> heard = torch.tensor([0, 0, 0, 1, 2])  # a number for each pair of target and relation
>>> choose_averages(sources, heard).tolist()
[True, True, False, False, False]
"""

from __future__ import annotations

import torch

_MOST_ROUNDS = 200  # a long chain loses its ends in each; what is left then is sent as rows


def choose_averages(sources: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
    """For each edge from one owner to one rank whether it reads an average.

    Who alone reads a row is given an average that covers more, and the reverse; where nobody is alone,
    those that cover most are taken. That comes close to the fewest that cover all edges, and is never
    more than rows alone or averages alone.
    """
    rows, source = torch.unique(sources, return_inverse=True)
    sums, target = torch.unique(heard, return_inverse=True)
    pairs = torch.unique(source * max(1, len(sums)) + target)
    one, other = pairs // max(1, len(sums)), pairs % max(1, len(sums))
    by_row, by_sum = _cover(one, other, len(rows), len(sums))
    by_sum &= _mark(other[~by_row[one]], len(sums))  # what the other side covers is not needed
    by_row &= _mark(one[~by_sum[other]], len(rows))
    traveling = int(by_row.sum()) + int(by_sum.sum())
    if traveling >= len(rows):
        return torch.zeros_like(sources, dtype=torch.bool)
    return ~by_row[source] | (traveling > len(sums))


def _cover(
    one: torch.Tensor, other: torch.Tensor, rows: int, sums: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and averages that cover all pairs of one of each."""
    by_row, by_sum = (torch.zeros(count, dtype=torch.bool, device="cpu") for count in (rows, sums))
    for _ in range(_MOST_ROUNDS):
        if not len(one):
            break
        of_row = torch.bincount(one, minlength=rows)[one]  # how many pairs each could cover
        of_sum = torch.bincount(other, minlength=sums)[other]
        takes_row, takes_sum = of_sum == 1, (of_row == 1) & (of_sum > 1)
        if not bool((takes_row | takes_sum).any()):
            least = int(torch.maximum(of_row, of_sum).max()) // 2 + 1
            takes_row = (of_row >= of_sum) & (of_row >= least)
            takes_sum = (of_sum > of_row) & (of_sum >= least)
        by_row[one[takes_row]] = True
        by_sum[other[takes_sum]] = True
        is_left = ~(by_row[one] | by_sum[other])
        one, other = one[is_left], other[is_left]
    by_row[one] = True
    return by_row, by_sum


def _mark(places: torch.Tensor, count: int) -> torch.Tensor:
    marks = torch.zeros(count, dtype=torch.bool, device="cpu")
    marks[places] = True
    return marks
