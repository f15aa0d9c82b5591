"""Plans for reading rows: every row in one piece, every byte where the plan says it is."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shorthaul.tensors.files.layout import DiskLayout
from shorthaul.tensors.tables.disk.plan import plan_rows

ROWS = 200


@hypothesis.settings(deadline=None)
@given(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60),
    st.sampled_from([1, 512]),
    st.integers(1, 300),
    st.integers(0, 700),
    st.sampled_from([512, 4096, 2**20]),
)
def test_reading_by_the_plan_brings_every_row(ids, alignment, row_bytes, offset, buffer_bytes):
    content = np.random.default_rng(0).integers(0, 256, offset + ROWS * row_bytes, np.uint8)
    layout = DiskLayout(Path("rows"), offset, torch.uint8, (ROWS, row_bytes), row_bytes)
    plan = plan_rows(layout, np.array(ids), alignment_bytes=alignment, end_bytes=len(content))
    out = np.zeros((len(ids), row_bytes), np.uint8)
    seen = 0
    for piece in plan.pieces(buffer_bytes):
        offsets = plan.reads.request_offsets_bytes[piece.requests]
        lengths = plan.reads.request_lengths_bytes[piece.requests]
        memory = np.concatenate(
            [content[start : start + size] for start, size in zip(offsets, lengths, strict=True)]
        )
        assert len(memory) == piece.length_bytes
        assert piece.length_bytes <= buffer_bytes or len(offsets) == 1
        for where, target in zip(
            plan.positions_bytes(piece), plan.order[piece.ranges], strict=True
        ):
            out[target] = memory[where : where + row_bytes]
        of_requests = [plan.rows_of_request(piece, number) for number in range(len(offsets))]
        assert sorted({row for rows in of_requests for row in rows}) == sorted(
            set(plan.sorted_ids[piece.ranges].tolist())
        )
        seen += piece.ranges.stop - piece.ranges.start
    assert seen == len(ids)
    assert plan.unique_rows == len(set(ids))
    expected = content[offset:].reshape(ROWS, row_bytes)[ids]
    assert (out == expected).all()
