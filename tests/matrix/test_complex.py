"""Complex numbers: moved bit for bit, conjugated where a view says so, and never taken for real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import shorthaul as sh
from shorthaul.errors import RowArgumentError, ShorthaulError, TableFormatError, UnifiedSourceError
from tests.matrix.operation import random_numbers, random_tensor

DTYPES = (torch.complex64, torch.complex128)
IDS = random_numbers(50, 20)


def table_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.complex(random_tensor(50, 6), random_tensor(50, 6, seed=1)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_in_memory(dtype: torch.dtype) -> None:
    plain = table_of(dtype)
    table = sh.unified(plain.clone())
    assert torch.equal(table[IDS], plain[IDS])
    assert torch.equal(table.gather(IDS), plain[IDS])
    assert torch.equal(table.prefetch(IDS).wait(), plain[IDS])
    table.scatter_(IDS[:3], plain[:3].conj())
    expected = plain.clone()
    for place, row in zip(IDS[:3].tolist(), plain[:3].conj(), strict=True):
        expected[place] = row
    assert torch.equal(table.plain(), expected)
    leaf = sh.unified(plain.clone()).requires_grad_()
    theirs = plain.clone().requires_grad_()
    for each in (leaf, theirs):
        each[IDS].abs().square().sum().backward()
    torch.testing.assert_close(leaf.grad.as_subclass(torch.Tensor), theirs.grad)


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda x: x.conj().imag], ids=["conj", "neg"])
def test_a_view_that_memory_does_not_hold_is_refused_or_right(view) -> None:
    plain = table_of(torch.complex64)
    with pytest.raises(UnifiedSourceError):
        sh.unified(view(plain))
    table = sh.unified(plain)
    with pytest.raises(RowArgumentError, match="resolve_conj"):
        view(table)[IDS]
    assert torch.equal(view(table).resolve_conj().resolve_neg()[IDS], view(plain)[IDS])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("suffix", [".npy", ".pt", ".safetensors"])
def test_files_hold_the_same_or_refuse(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    plain, path = table_of(dtype), tmp_path / f"table{suffix}"
    if suffix == ".safetensors" and dtype is torch.complex128:
        with pytest.raises(TableFormatError, match=r"has no torch\.complex128"):
            sh.save_features(path, plain, progress=False)
        assert not list(tmp_path.iterdir())
        return
    if suffix == ".pt":
        torch.save(plain, path)
    else:
        sh.save_features(path, plain, progress=False)
    table = sh.open(path)
    assert table.dtype is dtype
    assert torch.equal(table[IDS], plain[IDS])


def test_sums_and_products_are_refused_by_name() -> None:
    table = sh.unified(table_of(torch.complex64))
    with pytest.raises(RowArgumentError, match=r"floating-point rows, got torch\.complex64"):
        table.gather_reduce(torch.tensor([0, 20]), IDS)
    with pytest.raises(RowArgumentError, match=r"floating-point rows, got torch\.complex64"):
        table.gather_linear(IDS, table_of(torch.complex64)[:3])
    with pytest.raises(ShorthaulError, match="complex64"):
        sh.tensors.quantize(table_of(torch.complex64), "int8")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_convolutions(name: str, dtype: torch.dtype) -> None:
    def run(function) -> list[torch.Tensor]:
        image = table_of(dtype).reshape(3, 4, 5, 5).conj().requires_grad_()
        weight = table_of(dtype)[:24].reshape(4, 4, 3, 3).requires_grad_()
        out = function(image, weight, padding=1)
        out.abs().square().sum().backward()
        return [out.detach(), image.grad, weight.grad]

    torch.testing.assert_close(run(getattr(sh, name)), run(getattr(F, name)))


def test_offloaded_activations(tmp_path: Path) -> None:
    def run(folder: Path | None) -> list[torch.Tensor]:
        weight = table_of(torch.complex64)[:6].clone().requires_grad_()
        x = table_of(torch.complex64)
        if folder is None:
            loss = ((x @ weight.mH).exp() * x).abs().sum()
        else:
            with sh.offload_activations(folder, minimum_bytes=0, allow_memory=True):
                loss = ((x @ weight.mH).exp() * x).abs().sum()
        loss.backward()
        return [loss.detach(), weight.grad]

    for mine, theirs in zip(run(tmp_path), run(None), strict=True):
        assert torch.equal(mine, theirs)


def test_a_replaced_model_is_as_before() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, dtype=torch.complex64))
    image = table_of(torch.complex64)[:50].reshape(1, 3, 10, 10)
    expected = model(image)
    sh.replace_convs(model)
    torch.testing.assert_close(model(image), expected)
