"""How long does it take to gather 150,000 random rows from a table in memory?

`x[ids]` and `index_select` make a new tensor for each gather; `index_select(out=)` writes to one that is
there already. Ours takes its memory from a pool and gives it back when the result is forgotten. The
copy moves as many bytes from one place to another in order: no gather can be faster.

Rows of 512 bytes are those of 128 float32 features; the short and long rows have as many bytes in
total. The last case has a table that was advised to lie in huge pages. A full run takes about two
minutes.
"""

from __future__ import annotations

import torch

import shorthaul as sh
from benchmarks.measuring.answer import Answer, answer_question
from benchmarks.measuring.measure import Arm, same_bits

TABLE_BYTES, ROWS_BYTES = 768 * 10**6, 150_000 * 512
QUICK_SHARE = 16


def same_rows(expected: object, got: object) -> str:
    """Bit for bit; the copy in order makes nothing to compare."""
    return "" if got is None else same_bits(expected, got)


def gather_arms(table: torch.Tensor, unified: sh.UnifiedTensor, ids: torch.Tensor) -> list[Arm]:
    out = torch.empty(len(ids), table.shape[1])
    mine = torch.empty_like(out)
    target = torch.empty_like(out)

    def copy() -> None:
        target.copy_(table[: len(ids)])

    return [
        Arm("x[ids]", lambda: table[ids]),
        Arm("index_select", lambda: torch.index_select(table, 0, ids)),
        Arm("index_select(out=)", lambda: torch.index_select(table, 0, ids, out=out)),
        Arm("shorthaul", lambda: unified.gather(ids)),
        Arm("shorthaul, out=", lambda: unified.gather(ids, out=mine)),
        Arm("copy in order", copy),
    ]


def measure(answer: Answer) -> None:
    share = QUICK_SHARE if answer.is_quick else 1
    generator = torch.Generator().manual_seed(0)
    for row_bytes in (512, 64, 4096):
        table = torch.randn(TABLE_BYTES // share // row_bytes, row_bytes // 4)
        ids = torch.randint(len(table), (ROWS_BYTES // share // row_bytes,), generator=generator)
        case = f"{len(ids):,} rows of {row_bytes} B"
        compare(answer, case, table, ids)
        if row_bytes == 512:
            sh.unified(table).advise("huge_pages")
            compare(answer, f"{case}, table in huge pages", table, ids)
    answer.state(
        table=f"{TABLE_BYTES // share / 1e6:,.0f} MB of float32, ids drawn evenly with repeats",
        result=f"{ROWS_BYTES // share / 1e6:,.1f} MB",
    )


def compare(answer: Answer, case: str, table: torch.Tensor, ids: torch.Tensor) -> None:
    arms = gather_arms(table, sh.unified(table), ids)
    measured = answer.compare(case, arms, baseline="x[ids]", same=same_rows)
    copy_seconds = measured[-1].wall_seconds.median
    result_bytes = len(ids) * table.shape[1] * 4
    for row, each in zip(answer.rows[-len(measured) :], measured, strict=True):
        seconds = each.wall_seconds.median
        row["figures"] |= {
            "bytes_per_second": result_bytes / seconds,
            "copy_bandwidth_share": copy_seconds / seconds,
        }


if __name__ == "__main__":
    answer_question(measure)
