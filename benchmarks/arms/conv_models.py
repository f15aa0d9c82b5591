"""Convolutional models from Hugging Face's published configurations, with random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)


class Logits(nn.Module):
    """A classifier whose output is the tensor of its logits alone."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: Tensor) -> Tensor:
        """The logits of a batch of images."""
        logits: Tensor = self.classifier(image).logits
        return logits


# The defaults of the configurations are the published ResNet-50, ConvNeXt-T and MobileNet v2.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-50": lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)),
    "ConvNeXt-T": lambda: ConvNextForImageClassification(ConvNextConfig(num_labels=1000)),
    "MobileNet v2": lambda: MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000)),
}


def make(name: str) -> nn.Module:
    """The model called `name`, the same one each time, in channels-last order.

    Convolutions are drawn so that values keep their size: untrained, MobileNet's outputs would be
    1e-22, and any two arms would agree.
    """
    torch.manual_seed(0)
    model = Logits(MODELS[name]())
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model.to(memory_format=torch.channels_last)
