"""Run the Triton gathers in Triton's interpreter against plain torch; prints one JSON line a draw.

A program of its own, because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import gc
import json
import mmap
import random
import sys
import warnings

import torch

from shorthaul.errors import RowIndexError
from shorthaul.tensors.cuda.gather import DeviceGather
from shorthaul.tensors.cuda.registration import HostRegistry
from shorthaul.tensors.cuda.row_cache import DeviceRowCache, plan_hot_rows
from shorthaul.tensors.cuda.triton_launch import RangeFlag, gather_rows, reduce_rows
from shorthaul.tensors.kernels import plain_rows
from shorthaul.tensors.kernels.stored_rows import FLOATING, StoredRows
from shorthaul.tensors.tables.table import HostTable
from tests.tensors.fake_cuda import FakeCudaRuntime

CPU = torch.device("cpu")
DTYPES = (
    torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
ROW_SHAPES = ((1,), (3,), (7,), (8,), (16,), (32,), (33,), (48,), (100,), (128,), (3, 5), (), (0,))


def draw_rows(chosen: random.Random) -> StoredRows:
    """A table of any stored kind: cut out of a larger one, stepped, or beginning anywhere."""
    row_shape = chosen.choice(ROW_SHAPES)
    rows = chosen.choice((1, 2, 5, 40))
    kind = chosen.choice(("same", "same", "same", "float16", "bfloat16", "int8"))
    dtype = chosen.choice(DTYPES) if kind == "same" else getattr(torch, kind)
    width = torch.Size(row_shape).numel()
    before, after = chosen.choice(((0, 0), (0, 3), (1, 0), (2, 2)))
    values = (torch.randn(rows * 2, before + width + after) * 50).to(dtype)
    if dtype.is_floating_point and width:
        values[0, -1], values[-1, 0] = torch.nan, torch.inf
    values = values[chosen.choice((0, 1)) :: 2, before : before + width].unflatten(
        1, row_shape or (1,)
    )
    if not row_shape:
        values = values[:, 0]
    if kind == "same":
        return StoredRows(values, dtype)
    scales = torch.rand(len(values)) if kind == "int8" else None
    return StoredRows(values, torch.float32, scales)


def draw_ids(chosen: random.Random, rows: int) -> torch.Tensor:
    count = chosen.choice((0, 1, 3, 20, 70))
    return torch.randint(-rows, rows, (count,), dtype=chosen.choice((torch.int32, torch.int64)))


def draw_cache(chosen: random.Random, rows: StoredRows) -> DeviceRowCache | None:
    if chosen.random() < 0.5:
        return None
    row_bytes = rows.width * rows.values.element_size()
    budget_bytes = chosen.randint(0, rows.rows) * row_bytes
    plan = plan_hot_rows(
        torch.randint(0, 9, (rows.rows,)), budget_bytes=budget_bytes, row_bytes=row_bytes
    )
    return DeviceRowCache.fill(rows, plan, CPU)


def is_same(one: torch.Tensor, other: torch.Tensor, *, are_widened: bool = False) -> bool:
    """Whether shape, dtype and every bit agree; NaNs that are widened have bits to spare.

    Torch itself widens a NaN to one bit pattern or another, by the length of the row.
    """
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    if are_widened:
        one, other = (torch.where(each.isnan(), torch.nan, each) for each in (one, other))
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def check_gather(chosen: random.Random, rows: StoredRows, ids: torch.Tensor) -> bool:
    flag = RangeFlag(CPU)
    expected = plain_rows.gather(rows, ids % rows.rows)
    out = torch.ones_like(expected) if chosen.random() < 0.5 else None
    got = gather_rows(
        rows, ids, flag, out=out, is_sorted=chosen.random() < 0.5, cache=draw_cache(chosen, rows)
    )
    flag.require_clear(ids, rows.rows)
    is_right = is_same(got, expected, are_widened=rows.is_widened)
    return is_right and (out is None or got is out)


def check_bad_ids(chosen: random.Random, rows: StoredRows, ids: torch.Tensor) -> bool:
    """The first bad id is named; its row is zeros and the others are right."""
    if len(ids) == 0:
        return True
    bad = torch.zeros(len(ids), dtype=torch.bool)
    bad[chosen.sample(range(len(ids)), min(2, len(ids)))] = True
    wrong = torch.where(torch.rand(len(ids)) < 0.5, rows.rows + 3, -rows.rows - 1).to(ids.dtype)
    ids = torch.where(bad, wrong, ids)
    flag = RangeFlag(CPU)
    got = gather_rows(rows, ids, flag, is_sorted=chosen.random() < 0.5)
    expected = plain_rows.gather(rows, torch.where(bad, 0, ids % rows.rows))
    expected[bad] = 0
    first = int(bad.nonzero()[0, 0])
    try:
        flag.require_clear(ids, rows.rows)
    except RowIndexError as error:
        is_right = str(error) == str(RowIndexError(int(ids[first]), first, rows.rows))
        return is_right and is_same(got, expected, are_widened=rows.is_widened)
    return False


def check_reduce(chosen: random.Random, rows: StoredRows, ids: torch.Tensor) -> float:
    """The largest error of the three reductions, by the largest value; infinite ones must agree."""
    if rows.dtype not in FLOATING:
        return 0.0
    flag = RangeFlag(CPU)
    cuts = sorted(chosen.choices(range(len(ids) + 1), k=chosen.choice((0, 1, 6))))
    pointers = torch.tensor([0, *cuts, len(ids)], dtype=chosen.choice((torch.int32, torch.int64)))
    weights = torch.rand(len(ids)).to(rows.dtype) if chosen.random() < 0.5 else None
    worst = 0.0
    for op in plain_rows.REDUCTIONS:
        got = reduce_rows(
            rows, pointers, ids, op, flag, weights=weights, cache=draw_cache(chosen, rows)
        ).double()
        expected = plain_rows.gather_reduce(rows, pointers, ids % rows.rows, op, weights).double()
        if not torch.equal(got.isfinite(), expected.isfinite()):
            return float("inf")
        largest = max(1e-3, float(expected.nan_to_num(0, 0, 0).abs().max())) if got.numel() else 1.0
        difference = (got - expected).nan_to_num(0, 0, 0).abs()
        worst = max([worst, *(difference.flatten() / largest).tolist()])
    flag.require_clear(ids, rows.rows)
    return worst


def in_own_pages(values: torch.Tensor) -> torch.Tensor:
    """The same tensor in pages that nothing else lies in.

    A mapped table begins with its page. The interpreter tells tensors apart by where their memory
    begins, so another tensor at the beginning of that page would be taken for the table.
    """
    memory = values.untyped_storage()
    lead_bytes = memory.data_ptr() % mmap.PAGESIZE
    pages = torch.frombuffer(mmap.mmap(-1, lead_bytes + memory.nbytes() + 1), dtype=torch.uint8)
    copied = pages[lead_bytes : lead_bytes + memory.nbytes()]
    copied.copy_(torch.empty(0, dtype=torch.uint8).set_(memory))
    offset_bytes = lead_bytes + int(values.storage_offset()) * values.element_size()
    return torch.empty(0, dtype=values.dtype).set_(
        pages.untyped_storage(),
        offset_bytes // values.element_size(),
        values.shape,
        values.stride(),
    )


def check_whole_way(rows: StoredRows, ids: torch.Tensor) -> bool:
    """From a table through mapping and kernel to rows, and everything is unmapped at the end."""
    runtime = FakeCudaRuntime(shift_bytes=2**40)
    gatherer = DeviceGather(HostRegistry(runtime))
    table = HostTable(in_own_pages(rows.values), scales=rows.scales, dtype=rows.dtype)
    expected = plain_rows.gather(rows, ids % rows.rows)
    wide = rows.is_widened
    is_right = is_same(gatherer.gather(table, ids, CPU), expected, are_widened=wide)
    gatherer.keep_hot_rows(table, torch.arange(rows.rows), CPU, 2 * table.stored_row_bytes)
    got = gatherer.gather(table, ids, CPU, is_sorted=True)
    is_right = is_right and is_same(got, expected, are_widened=wide)
    if rows.dtype in FLOATING:
        pointers = torch.tensor([0, len(ids)])
        largest = gatherer.gather_reduce(table, pointers, ids, CPU, "max")
        wanted = plain_rows.gather_reduce(rows, pointers, ids % rows.rows, "max", None)
        is_right = is_right and is_same(largest.nan_to_num(7), wanted.nan_to_num(7))
    try:
        gatherer.gather(table, torch.tensor([0, rows.rows]), CPU)
        is_right = False
    except RowIndexError as error:
        is_right = is_right and "position 1" in str(error)
    del table
    gc.collect()  # the interpreter leaves circles behind
    return is_right and runtime.ranges == {}


def main(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # index_reduce tells that it is young
    chosen = random.Random(seed)
    for number in range(count):
        rows = draw_rows(chosen)
        ids = draw_ids(chosen, rows.rows)
        found = {
            "drawn": f"{tuple(rows.values.shape)} of {rows.values.dtype} seen as {rows.dtype}, "
            f"strides {rows.values.stride()}, {len(ids)} {ids.dtype}",
            "dtype": str(rows.dtype),
            "gather": check_gather(chosen, rows, ids),
            "bad_ids": check_bad_ids(chosen, rows, ids),
            "reduce_error": check_reduce(chosen, rows, ids),
            "whole_way": number % 4 != 0 or check_whole_way(rows, ids),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
