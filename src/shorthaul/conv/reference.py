"""Window-order convolution in plain PyTorch, exactly by the published index maps.

This is the oracle of the tests and the text to read first; the generated kernels do the same a few
rows at a time. The window tensor of an image, per channel r and output row m, holds that row's band
of the image column by column::

    W[i][r][m][k * Kh + u] = I[i][r][m * s + u][k]

so that window (m, n) is one contiguous run of Kw * Kh values that starts at n * s * Kh, and the
overlap of horizontal neighbors is stored once. Three dimensions only make the band deeper:
u counts the kd * kh values of a column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shorthaul.conv.aten import apply_activation
from shorthaul.conv.problem import ConvProblem, source_index


def window_tensor(problem: ConvProblem, input: Tensor) -> Tensor:
    """The papers' full im2win tensor: (N, channels, D', H', padded W * kd * kh).

    >>> image = torch.arange(12.0).view(1, 1, 1, 3, 4)
    >>> window_tensor(ConvProblem(1, 1, (1, 2, 3)), image)[0, 0, 0]
    tensor([[ 0.,  4.,  1.,  5.,  2.,  6.,  3.,  7.],
            [ 4.,  8.,  5.,  9.,  6., 10.,  7., 11.]])
    """
    input = pad_by_index(problem, input)
    columns = input.shape[4]
    depth, height, _ = _output_sizes(problem, input)
    kernel_depth, kernel_height, _ = problem.kernel
    band_rows = [
        input[:, :, _taps(problem, 0, u, depth)][:, :, :, _taps(problem, 1, v, height)]
        for u in range(kernel_depth)
        for v in range(kernel_height)
    ]  # each (N, C, D', H', W)
    column_by_column = torch.stack(band_rows, dim=-1)
    return column_by_column.reshape(
        *input.shape[:2], depth, height, columns * kernel_depth * kernel_height
    )


def window_order_filter(problem: ConvProblem, weight: Tensor) -> Tensor:
    """G[j][r][v * Kh + u] = F[j][r][u][v]: the filter in the order of a window."""
    return weight.reshape(problem.weight_shape).permute(0, 1, 4, 2, 3).flatten(2)


def windows(problem: ConvProblem, tensor: Tensor) -> Tensor:
    """All windows of a window tensor as a view: (N, C, D', H', W', kw * kd * kh values).

    With a dilation in the width a window is kw runs instead of one, and this is a copy.
    """
    kernel_depth, kernel_height, kernel_width = problem.kernel
    band = kernel_depth * kernel_height
    reach = problem.dilation[2] * (kernel_width - 1) + 1
    runs = tensor.unfold(4, reach * band, problem.stride[2] * band)
    runs = runs.view(*runs.shape[:5], reach, band)
    return runs[..., :: problem.dilation[2], :].flatten(5)


def conv_forward(
    problem: ConvProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """The whole convolution with the full window tensor."""
    groups, channels = problem.groups, problem.in_channels_per_group
    windowed = windows(problem, window_tensor(problem, input))
    windowed = windowed.reshape(len(input), groups, channels, *windowed.shape[2:])
    filters = window_order_filter(problem, weight)
    filters = filters.reshape(groups, -1, *filters.shape[1:])
    output = torch.einsum("ngcdhwk,gjck->ngjdhw", windowed, filters).flatten(1, 2)
    if bias is not None:
        output = output + bias.view(-1, 1, 1, 1)
    if residual is not None:
        output = output + residual
    return apply_activation(output, problem.activation)


def pad_by_index(problem: ConvProblem, input: Tensor) -> Tensor:
    """A padded copy, one position at a time from `source_index`."""
    for dimension, (low, high) in enumerate(problem.padding, start=2):
        size = input.shape[dimension]
        zero = torch.zeros_like(input.narrow(dimension, 0, 1))
        slices = [
            zero if index < 0 else input.narrow(dimension, index, 1)
            for index in (
                source_index(position, size, problem.padding_mode)
                for position in range(-low, size + high)
            )
        ]
        input = torch.cat(slices, dim=dimension)
    return input


def _output_sizes(problem: ConvProblem, padded: Tensor) -> tuple[int, int, int]:
    low_and_high = [sum(pair) for pair in problem.padding]
    depth, height, width = (
        size - added for size, added in zip(padded.shape[2:], low_and_high, strict=True)
    )
    return problem.output_sizes((depth, height, width))


def _taps(problem: ConvProblem, dimension: int, tap: int, outputs: int) -> slice:
    """The rows that kernel row `tap` meets, one for each output row."""
    start = tap * problem.dilation[dimension]
    stride = problem.stride[dimension]
    return slice(start, start + (outputs - 1) * stride + 1, stride)
