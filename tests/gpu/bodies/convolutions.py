"""Convolutions by generated kernels and by cuDNN, and models whose convolutions were replaced."""

from __future__ import annotations

import copy
import tempfile

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import shorthaul as sh
from shorthaul.settings import settings
from tests.gpu.suites import CLOSE, body


@body
def generated_convolutions_compute_what_the_cpu_computes(device: torch.device) -> None:
    for groups, padding, stride in ((1, 1, 1), (2, 0, 2)):
        x, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 4 // groups, 3, 3)
        here = [each.clone().requires_grad_() for each in (x, weight)]
        there = [each.to(device).requires_grad_() for each in (x, weight)]
        options = {"padding": padding, "groups": groups, "stride": stride}
        expected = F.conv2d(*here, **options)
        with settings.override(kernels="generated"):
            got = sh.conv2d(*there, **options)
            got.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(got.cpu(), expected, **CLOSE)
        for mine, yours in zip(there, here, strict=True):
            torch.testing.assert_close(mine.grad.cpu(), yours.grad, rtol=1e-4, atol=1e-3)


@body
def convolutions_of_every_kind_have_their_gradients(device: torch.device) -> None:
    for dimensions, is_transposed in ((1, False), (2, True), (3, False)):
        name = f"conv_transpose{dimensions}d" if is_transposed else f"conv{dimensions}d"
        x, weight = torch.randn(2, 4, *[6] * dimensions), torch.randn(4, 4, *[3] * dimensions)
        here = [each.clone().requires_grad_() for each in (x, weight)]
        expected = getattr(F, name)(*here, padding=1)
        expected.square().sum().backward()
        for kernels in ("auto", "generated"):
            there = [each.to(device).requires_grad_() for each in (x, weight)]
            with settings.override(kernels=kernels):
                got = getattr(sh, name)(*there, padding=1)
                got.square().sum().backward()
            torch.testing.assert_close(got.cpu(), expected, **CLOSE)
            for mine, yours in zip(there, here, strict=True):
                torch.testing.assert_close(mine.grad.cpu(), yours.grad, rtol=1e-4, atol=1e-3)


@body
def measured_convolutions_compute_what_the_cpu_computes(device: torch.device) -> None:
    x, weight = torch.randn(2, 8, 6, 6), torch.randn(8, 8, 3, 3)
    expected, moved = F.conv2d(x, weight, padding=1), (x.to(device), weight.to(device))
    with (
        tempfile.TemporaryDirectory() as cache,
        settings.override(cache_directory=cache),
        torch.no_grad(),  # gradients are measured where they are computed
    ):
        for tune in (True, False):
            got = sh.conv2d(*moved, padding=1, tune=tune)
            torch.testing.assert_close(got.cpu(), expected, **CLOSE)


@body
def replaced_models_move_there_and_back(device: torch.device) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2)
    ).eval()
    x = torch.randn(2, 3, 9, 9)
    expected = model(x)
    replaced = copy.deepcopy(model)
    sh.replace_convs(replaced, policy="always")
    replaced(x)
    replaced.to(device)
    for form in (torch.contiguous_format, torch.channels_last):
        for kernels in ("auto", "generated"):
            with settings.override(kernels=kernels):
                got = replaced(x.to(device).to(memory_format=form))
            torch.testing.assert_close(got.cpu(), expected, **CLOSE)
    torch.testing.assert_close(replaced.to("cpu")(x), expected, **CLOSE)
