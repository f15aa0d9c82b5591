"""Twenty models for images from Hugging Face's configurations, with random weights, and a small U-Net."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

# Class names of configuration and model, and what differs from the published default.
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet-18": ("ResNet", {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2] * 4}),
    "ResNet-34": ("ResNet", {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [3, 4, 6, 3]}),
    "ResNet-50": ("ResNet", {}),
    "MobileNet-V1": ("MobileNetV1", {}),
    "MobileNet-V2": ("MobileNetV2", {}),
    "ConvNeXt-T": ("ConvNext", {}),
    "ConvNeXt-V2": ("ConvNextV2", {}),
    "EfficientNet": ("EfficientNet", {"image_size": 224}),
    "RegNet": ("RegNet", {}),
    "BiT": ("Bit", {}),
    "PoolFormer": ("PoolFormer", {}),
    "SegFormer": ("Segformer", {}),
    "MobileViT": ("MobileViT", {"image_size": 224}),
    "CvT": ("Cvt", {}),
    "LeViT": ("Levit", {}),
    "PVT-V2": ("PvtV2", {}),
    "ViT": ("ViT", {"num_hidden_layers": 4}),
    "Swin": ("Swin", {}),
    "DINOv2": ("Dinov2", {"num_hidden_layers": 4}),
    "FocalNet": ("FocalNet", {}),
}  # fmt: skip


class UNet(nn.Module):
    """Two levels down and up again, 16 channels wide."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            convolutions = [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.Conv2d(outputs, outputs, 3, padding=1),
            ]
            return nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU())

        self.first, self.second, self.lowest = block(3, 16), block(16, 32), block(32, 64)
        self.up, self.last = block(96, 32), block(48, 16)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        """A value per pixel."""
        first = self.first(image)
        second = self.second(torch.max_pool2d(first, 2))
        lowest = self.lowest(torch.max_pool2d(second, 2))
        up = self.up(torch.cat([nn.functional.interpolate(lowest, scale_factor=2), second], 1))
        joined = torch.cat([nn.functional.interpolate(up, scale_factor=2), first], 1)
        output: Tensor = self.head(self.last(joined))
        return output


class Features(nn.Module):
    """A model whose output is one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """What the model makes of the image."""
        features: Tensor = self.model(image).last_hidden_state
        return features


def _make(kind: str, changes: dict[str, Any]) -> nn.Module:
    configuration = getattr(transformers, f"{kind}Config")(**changes)
    return Features(getattr(transformers, f"{kind}Model")(configuration))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "U-Net": UNet,
    **{
        name: lambda kind=kind, changes=changes: _make(kind, changes)  # type: ignore[misc]
        for name, (kind, changes) in CONFIGURATIONS.items()
    },
}
