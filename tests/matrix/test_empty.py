"""Operations on nothing: no rows, no ids, no columns, no edges, no images, nothing saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import shorthaul as sh
from shorthaul.errors import ConvolutionError, RowIndexError
from tests.matrix.operation import random_tensor

NONE = torch.empty(0, dtype=torch.int64)
SHAPES = [(0, 6), (5, 0), (0, 0), (5, 6), (5, 2, 0), (0,), (5,)]


def table_of(shape: tuple[int, ...], kind: str, folder: Path) -> torch.Tensor:
    """In memory or in a file of some format."""
    values = random_tensor(*shape)
    if kind == "host":
        return sh.unified(values)
    sh.save_features(folder / f"table{kind}", values, progress=False)
    return sh.open(folder / f"table{kind}")


@pytest.mark.parametrize("kind", ["host", ".npy", ".safetensors"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_empty_tables(shape: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    plain, table = random_tensor(*shape), table_of(shape, kind, tmp_path)
    assert table.shape == plain.shape
    assert table[NONE].shape == (0, *shape[1:])
    assert table.prefetch(NONE).wait().shape == (0, *shape[1:])
    assert torch.equal(table[:].cpu(), plain)
    assert torch.equal(table[1:3].cpu(), plain[1:3])
    if shape[0]:
        ids = torch.tensor([4, 0, 4])
        assert torch.equal(table[ids], plain[ids])
    for wrong in (shape[0], -shape[0] - 1):
        with pytest.raises(RowIndexError):
            table[torch.tensor([wrong])]


@pytest.mark.parametrize("kind", ["host", ".npy"])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 6), (5, 0), (5, 6)])
@pytest.mark.parametrize("segments", [0, 3])
def test_segments_of_nothing_are_zeros(
    rows: int, columns: int, segments: int, op: str, kind: str, tmp_path: Path
) -> None:
    table = table_of((rows, columns), kind, tmp_path)
    pointers = torch.zeros(segments + 1, dtype=torch.int64)
    found = table.gather_reduce(pointers, NONE, op)
    assert torch.equal(found, torch.zeros(segments, columns))


@pytest.mark.parametrize("kind", ["host", ".npy"])
@pytest.mark.parametrize(
    ("rows", "columns", "outputs"), [(5, 0, 3), (5, 6, 0), (5, 0, 0), (0, 6, 3)]
)
def test_products_of_nothing(
    rows: int, columns: int, outputs: int, kind: str, tmp_path: Path
) -> None:
    table = table_of((rows, columns), kind, tmp_path)
    ids = torch.tensor([0, 4]) if rows else NONE
    weight, bias = random_tensor(outputs, columns), random_tensor(outputs)
    expected = F.linear(random_tensor(rows, columns)[ids], weight, bias)
    torch.testing.assert_close(table.gather_linear(ids, weight, bias), expected)
    assert table.gather_linear(NONE, weight).shape == (0, outputs)


@pytest.mark.parametrize("shape", [(5, 6), (0, 6), (5, 0)], ids=str)
def test_writing_and_training_nothing(shape: tuple[int, ...]) -> None:
    values = random_tensor(*shape)
    table = sh.unified(values.clone())
    table.scatter_(NONE, torch.empty(0, *shape[1:]))
    assert torch.equal(table.plain(), values)
    for sparse in (False, True):
        leaf = sh.unified(values.clone(), sparse_grad=sparse).requires_grad_()
        leaf[NONE].sum().backward()
        grad = leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad
        assert torch.equal(torch.Tensor.clone(grad), torch.zeros(shape))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    ("image", "weight"),
    [
        pytest.param((0, 3, 5), (4, 3, 3), id="no images"),
        pytest.param((2, 0, 5), (4, 0, 3), id="no input channels"),
        pytest.param((0, 0, 5), (4, 0, 3), id="neither"),
        pytest.param((2, 3, 5), (0, 3, 3), id="no output channels"),
        pytest.param((2, 3, 0), (4, 3, 1), id="no pixels"),
        pytest.param((2, 3, 2), (4, 3, 3), id="a window larger than the image"),
        pytest.param((2, 3, 5), (4, 3, 0), id="an empty window"),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_convolutions_of_nothing(
    dimensions: int, image: tuple[int, ...], weight: tuple[int, ...], layout: str
) -> None:
    def tensors() -> list[torch.Tensor]:
        made = [random_tensor(*shape[:2], *[shape[2]] * dimensions) for shape in (image, weight)]
        last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dimensions)
        if layout == "channels_last" and last is not None:
            made[0] = made[0].contiguous(memory_format=last)
        return [each.requires_grad_() for each in made]

    ours, theirs = tensors(), tensors()
    function = getattr(F, f"conv{dimensions}d")
    try:
        expected = function(*theirs)
    except RuntimeError:
        with pytest.raises(ConvolutionError):
            getattr(sh, f"conv{dimensions}d")(*ours)
        return
    found = getattr(sh, f"conv{dimensions}d")(*ours)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, their.grad)


@pytest.mark.parametrize("budget", [None, "1MiB"])
def test_offloading_nothing(budget: str | None, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    image = torch.empty(0, 6, requires_grad=True)
    with sh.offload_activations(tmp_path, minimum_bytes=0, budget=budget, allow_memory=True):
        loss = model(image).sum()
    loss.backward()
    assert torch.equal(image.grad, torch.empty(0, 6))
    assert all(torch.equal(each.grad, torch.zeros_like(each)) for each in model.parameters())
