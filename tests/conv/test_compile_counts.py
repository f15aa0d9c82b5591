"""How many kernels whole models compile: the most that may come of it, so that no change adds many unseen.

The compiler does not optimize, and the models run by ATen until it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import shorthaul as sh
from shorthaul.conv.problem.machine import AVX2
from shorthaul.jit.compiling.loading import wait_for_compilers
from tests.conv.machines import hold_choices_to
from tests.conv.nothing_compiled import nothing_compiled


def _resnet_18() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(
        ResNetConfig(
            layer_type="basic", embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2] * 4
        )
    )


def _mobilenet() -> nn.Module:
    from transformers import MobileNetV1Config, MobileNetV1Model

    return MobileNetV1Model(MobileNetV1Config())


def _convnext_t() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig(hidden_sizes=[96, 192, 384, 768], depths=[3, 3, 9, 3]))


class UNet(nn.Module):
    """Two levels down and up again, 16 channels wide."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1),
                nn.ReLU(),
            )

        self.first, self.second, self.lowest = block(3, 16), block(16, 32), block(32, 64)
        self.up, self.last = block(96, 32), block(48, 16)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        second = self.second(torch.max_pool2d(first, 2))
        lowest = self.lowest(torch.max_pool2d(second, 2))
        up = self.up(torch.cat([nn.functional.interpolate(lowest, scale_factor=2), second], 1))
        return self.head(
            self.last(torch.cat([nn.functional.interpolate(up, scale_factor=2), first], 1))
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "for_inference", "for_training"),
    [
        pytest.param(_resnet_18, 13, 35, id="ResNet-18"),
        pytest.param(_mobilenet, 15, 30, id="MobileNet-V1"),
        pytest.param(UNet, 11, 24, id="U-Net"),
        pytest.param(_convnext_t, 7, 16, id="ConvNeXt-T"),
    ],
)
def test_a_model_compiles_so_many_kernels_at_most(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], nn.Module],
    for_inference: int,
    for_training: int,
) -> None:
    if make is not UNet:
        pytest.importorskip("transformers")
    hold_choices_to(AVX2, monkeypatch)
    image, counts = torch.randn(2, 3, 224, 224), []
    for is_training in (False, True):
        folder = tmp_path / ("training" if is_training else "inference")
        folder.mkdir()
        with nothing_compiled(folder):
            model = make().train(is_training)
            sh.replace_convs(model)
            with torch.set_grad_enabled(is_training):
                output = model(image)
            if is_training:
                getattr(output, "last_hidden_state", output).sum().backward()
            wait_for_compilers()
            counts.append(len(list((folder / "cache" / "kernels").glob("*/kernel.so"))))
    # Fewer where a kernel that layers share is there before the next of them asks.
    assert counts[0] <= for_inference
    assert counts[1] <= for_training
