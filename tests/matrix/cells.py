"""A cell: one operation in one surrounding, or with one kind of input, compared with the plain one."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.matrix.given import GIVEN, as_plain
from tests.matrix.operation import Operation, Tensors, require_same
from tests.matrix.surroundings import SURROUNDINGS, WITHOUT_GRADIENTS


def run_in(operation: Operation, surrounding: str, folder: Path) -> None:
    """In `surrounding`, and then, with what was made and kept there, in plain surroundings again."""
    given = operation.inputs()
    expected = find_expected(operation, given, folder / "plain")
    run = operation.prepare(given, make(folder / "cell"))
    found = SURROUNDINGS[surrounding](run, folder)
    require_same(operation, expected, found, some=surrounding in WITHOUT_GRADIENTS)
    require_same(operation, expected, run())


def run_with(operation: Operation, kind: str, folder: Path) -> None:
    """With inputs of `kind`, which must be as they were afterwards."""
    plain = operation.inputs()
    given = GIVEN[kind](plain, make(folder / "given"))
    if kind == "read-only" and operation.writes:
        given[operation.writes] = plain[operation.writes]
    before = as_plain(given)
    expected = find_expected(operation, before, folder / "plain")
    found = operation.prepare(given, make(folder / "cell"))()
    require_same(operation, expected, found)
    for name, each in given.items():
        assert torch.equal(each, before[name]), f"{name} was changed"


def find_expected(operation: Operation, given: Tensors, folder: Path) -> Tensors:
    """What must come out, by plain PyTorch where there is an oracle."""
    if operation.plain is not None:
        return operation.plain(as_plain(given))
    return operation.prepare(as_plain(given), make(folder))()


def make(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir(parents=True)
    return folder
