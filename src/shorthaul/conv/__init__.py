"""Window-order convolution: problem -> schedule -> emit -> kernel; functional, layer, replace."""

from shorthaul.conv.execution.fingerprint import freeze_weights
from shorthaul.conv.functional import conv1d, conv2d, conv3d
from shorthaul.conv.layer import Conv1d, Conv2d, Conv3d
from shorthaul.conv.models.quantize import QuantizationReport, QuantizedLayer, quantize_weights
from shorthaul.conv.models.replace import ReplacementReport, replace_convs
from shorthaul.conv.models.replaced_layer import ReplacedLayer
from shorthaul.conv.models.warm_up import WarmUpReport, warm_up
from shorthaul.conv.planning.estimate import TWELVE_LAYERS, Estimate, Layer, estimate
from shorthaul.conv.problem import ACTIVATIONS, PADDING_MODES, ConvProblem
from shorthaul.conv.transposed import conv_transpose1d, conv_transpose2d, conv_transpose3d

__all__ = [
    "ACTIVATIONS",
    "PADDING_MODES",
    "TWELVE_LAYERS",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvProblem",
    "Estimate",
    "Layer",
    "QuantizationReport",
    "QuantizedLayer",
    "ReplacedLayer",
    "ReplacementReport",
    "WarmUpReport",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "estimate",
    "freeze_weights",
    "quantize_weights",
    "replace_convs",
    "warm_up",
]
