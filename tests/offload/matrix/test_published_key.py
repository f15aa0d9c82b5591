"""The published identity of tensors breaks what it is said to break, and ours breaks none of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from tests.offload.cases import leaf, views
from tests.offload.keep_all import small_offload
from tests.offload.published_key import (
    EQUAL,
    SILENT,
    WRONG,
    PublishedKey,
    judge,
    judge_change_in_place,
    list_steps,
    render_table,
)

PAGE = Path(__file__).parents[3] / "docs" / "offload-design.md"
TITLE = "## What the published key breaks\n"
STEPS = {name: (leaves, step) for name, leaves, step in list_steps()}


def test_the_table_in_the_documentation_is_what_happens():
    section = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    written = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    assert written == render_table(), "python -m tests.offload.published_key prints the new table"


def test_views_at_different_offsets_collide():
    x = leaf(64, 64)
    assert judge([x], lambda: views(x), PublishedKey) == WRONG
    assert judge([x], lambda: (x * 2).sin().sum(), PublishedKey) == EQUAL


def test_a_change_in_place_is_not_noticed():
    assert judge_change_in_place(PublishedKey) == SILENT
    assert judge_change_in_place(contextlib.nullcontext) == "raises, as it must"


def test_views_of_one_key_are_the_first_of_them():
    with PublishedKey():
        h = torch.ones(64, 64, requires_grad=True) * torch.arange(64.0)[:, None]
        first, second = h[:32].sin(), h[32:].sin()
    assert torch.equal(first.grad_fn._saved_self, h[:32])
    assert torch.equal(second.grad_fn._saved_self, h[:32])  # and not h[32:]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return small_offload(tmp_path_factory.mktemp("scratch"))


@pytest.mark.parametrize("name", STEPS)
def test_ours_breaks_none(name, shared):
    leaves, step = STEPS[name]
    assert judge(leaves, step, lambda: shared) == EQUAL


def test_ours_notices_a_change_in_place(shared):
    assert judge_change_in_place(lambda: shared) == "raises, as it must"
