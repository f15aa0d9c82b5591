"""Convolutional models of well-known shapes, with random weights, from plain PyTorch modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """The block of a ResNet-50: 1x1, 3x3, 1x1, and a way around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, image: Tensor) -> Tensor:
        """The body's output added to the input."""
        result: Tensor = self.relu(self.body(image) + self.around(image))
        return result


def resnet50(classes: int = 1000) -> nn.Module:
    """The shapes of ResNet-50."""
    blocks: list[nn.Module] = []
    channels = 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for index in range(count):
            blocks.append(Bottleneck(channels, width, 2 if stage and not index else 1))
            channels = 4 * width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, image: Tensor) -> Tensor:
        """Channels are moved last and back, which for channels_last images moves nothing."""
        result: Tensor = self.norm(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result


class ConvNextBlock(nn.Module):
    """A 7x7 depthwise convolution and two 1x1 ones."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            ChannelNorm(channels),
            nn.Conv2d(channels, 4 * channels, 1),
            nn.GELU(),
            nn.Conv2d(4 * channels, channels, 1),
        )

    def forward(self, image: Tensor) -> Tensor:
        """The body's output added to the input."""
        result: Tensor = image + self.body(image)
        return result


def convnext_tiny(classes: int = 1000) -> nn.Module:
    """The shapes of ConvNeXt-T."""
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    channels = 96
    for stage, count in enumerate((3, 3, 9, 3)):
        if stage:
            parts += [ChannelNorm(channels), nn.Conv2d(channels, 2 * channels, 2, 2)]
            channels *= 2
        parts += [ConvNextBlock(channels) for _ in range(count)]
    return nn.Sequential(
        *parts,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(channels),
        nn.Linear(channels, classes),
    )


class InvertedResidual(nn.Module):
    """The block of MobileNet v2: wider, depthwise, narrow again."""

    def __init__(self, channels: int, outputs: int, stride: int, widening: int) -> None:
        super().__init__()
        width = channels * widening
        steps: list[nn.Module] = []
        if widening != 1:
            steps += [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
        self.body = nn.Sequential(
            *steps,
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU6(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.is_added = stride == 1 and channels == outputs

    def forward(self, image: Tensor) -> Tensor:
        """The body's output, added to the input where the shapes allow it."""
        result: Tensor = self.body(image)
        return result + image if self.is_added else result


def mobilenet(classes: int = 1000) -> nn.Module:
    """The shapes of MobileNet v2."""
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    channels = 32
    for widening, outputs, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            parts.append(InvertedResidual(channels, outputs, stride if not index else 1, widening))
            channels = outputs
    return nn.Sequential(
        *parts,
        nn.Conv2d(channels, 1280, 1, bias=False),
        nn.BatchNorm2d(1280),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, classes),
    )


MODELS = {
    "ResNet-50 shapes": resnet50,
    "ConvNeXt-T shapes": convnext_tiny,
    "MobileNet v2 shapes": mobilenet,
}


def make(name: str) -> nn.Module:
    """A model with the same random weights each time, channels last."""
    torch.manual_seed(0)
    return MODELS[name]().to(memory_format=torch.channels_last)
