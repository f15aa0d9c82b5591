"""What a convolution will cost before it runs: extra memory by method, and its share of peak.

>>> layer = TWELVE_LAYERS[3]
>>> expected = estimate(layer.problem, 1, layer.sizes, threads=1)
>>> round(expected.im2col_bytes / expected.im2win_bytes, 2), expected.ours_bytes < 2**20
(3.41, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.table import Table

from shorthaul.conv.planning.choice import choose_schedule, find_method
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.conv.problem.geometry import forward_task
from shorthaul.units import format_bytes

# What a byte costs, in floating-point operations that could be done meanwhile: packing runs at about
# 20 GB/s, writing outputs and streaming weights at about 35 GB/s, beside a measured peak of 104
# GFLOP/s (one core, AVX2). The ratio, not the speed, is what changes little between machines.
_FLOPS_PER_PACKED_BYTE = 5.0
_FLOPS_PER_STREAMED_BYTE = 3.0


@dataclass(frozen=True)
class Layer:
    """A named convolution with its image size."""

    name: str  # as in the papers
    problem: ConvProblem  # the convolution
    sizes: Triple  # depth, height and width of its images


def _square(name: str, channels: int, size: int, outputs: int, kernel: int, stride: int) -> Layer:
    problem = ConvProblem(channels, outputs, (1, kernel, kernel), stride=(1, stride, stride))
    return Layer(name, problem, (1, size, size))


# The layers that the papers on MEC and im2win measure: square, without padding, float32.
TWELVE_LAYERS = (
    _square("conv1", 3, 227, 96, 11, 4),
    _square("conv2", 3, 231, 96, 11, 4),
    _square("conv3", 3, 227, 64, 7, 2),
    _square("conv4", 64, 224, 64, 7, 2),
    _square("conv5", 96, 24, 256, 5, 1),
    _square("conv6", 256, 12, 512, 3, 1),
    _square("conv7", 3, 224, 64, 3, 1),
    _square("conv8", 64, 112, 128, 3, 1),
    _square("conv9", 64, 56, 64, 3, 1),
    _square("conv10", 128, 28, 128, 3, 1),
    _square("conv11", 256, 14, 256, 3, 1),
    _square("conv12", 512, 7, 512, 3, 1),
)


@dataclass(frozen=True)
class Estimate:
    """Bytes beyond input, weights and output, and what share of the machine's peak to expect."""

    problem: ConvProblem  # the convolution
    batch: int  # images
    sizes: Triple  # their depth, height and width
    threads: int  # that compute
    input_bytes: int  # of the batch
    output_bytes: int  # of the batch
    weight_bytes: int  # as the caller has them
    im2col_bytes: int  # extra memory of im2col, as the next ones
    mec_bytes: int  # of MEC
    im2win_bytes: int  # of im2win as published
    ours_bytes: int  # workspaces and packed weights
    flops: int  # of a forward pass
    peak_share: float  # of the machine's peak, expected
    direct_bytes: int = 0  # extra memory of a direct convolution

    def table(self) -> Table:
        """A table for `rich.print`."""
        table = Table(title=f"{self.problem.describe()}, batch {self.batch}, image {self.sizes}")
        table.add_column("method")
        table.add_column("extra memory", justify="right")
        for method, count_bytes in (
            ("direct", self.direct_bytes),
            ("im2col", self.im2col_bytes),
            ("MEC", self.mec_bytes),
            ("im2win, whole tensor", self.im2win_bytes),
            (f"shorthaul, {self.threads} threads", self.ours_bytes),
        ):
            table.add_row(method, format_bytes(count_bytes))
        table.caption = (
            f"{self.flops / 1e9:.3f} GFLOP; about {self.peak_share:.0%} of the FMA peak expected"
        )
        return table


def estimate(
    problem: ConvProblem, batch: int, sizes: Triple, *, threads: int | None = None
) -> Estimate:
    """Extra memory of the known methods for `batch` images of `sizes`, and of ours.

    im2col, MEC and im2win are counted for the whole batch and for the padded image, as their papers
    and PyTorch's im2col do. `peak_share` comes from a model of what is moved beside the arithmetic,
    within a few percent of what was measured on AVX2; low precision is counted as float32, in which
    it is computed.

    Args:
        problem: The convolution.
        batch: Number of images.
        sizes: Their depth, height and width.
        threads: Threads that would compute it; None (default) takes PyTorch's number.
    """
    problem.verify_input_sizes(sizes)
    threads = torch.get_num_threads() if threads is None else threads
    depth, height, width = problem.padded_sizes(sizes)
    out_depth, out_height, out_width = problem.output_sizes(sizes)
    kernel_depth, kernel_height, kernel_width = problem.kernel
    value_bytes = problem.dtype.itemsize
    values = batch * problem.in_channels
    input_values = values * sizes[0] * sizes[1] * sizes[2]
    output_values = batch * problem.out_channels * out_depth * out_height * out_width
    weight_values = problem.out_channels * problem.window_values
    band = kernel_depth * kernel_height
    has_overlap = kernel_depth > problem.stride[0] or kernel_height > problem.stride[1]
    # Bands that do not overlap hold no value twice.
    im2win_values = (
        values * width * (out_depth * out_height * band if has_overlap else depth * height)
    )
    flops = problem.flops(batch, sizes)
    wide_bytes = max(4, value_bytes)
    overhead = _FLOPS_PER_PACKED_BYTE * im2win_values * wide_bytes + _FLOPS_PER_STREAMED_BYTE * (
        (output_values + weight_values) * wide_bytes
    )
    return Estimate(
        problem=problem,
        batch=batch,
        sizes=sizes,
        threads=threads,
        input_bytes=input_values * value_bytes,
        output_bytes=output_values * value_bytes,
        weight_bytes=weight_values * value_bytes,
        im2col_bytes=values
        * band
        * kernel_width
        * out_depth
        * out_height
        * out_width
        * value_bytes,
        mec_bytes=values * depth * height * kernel_width * out_width * value_bytes,
        im2win_bytes=im2win_values * value_bytes,
        ours_bytes=_our_workspace_bytes(problem, batch, sizes, threads),
        flops=flops,
        peak_share=flops / (flops + overhead) if flops else 0.0,
    )


def _our_workspace_bytes(problem: ConvProblem, batch: int, sizes: Triple, threads: int) -> int:
    task = forward_task(problem, batch, sizes)
    if not task.flops:
        return 0
    schedule = choose_schedule(problem, (batch, *sizes))
    return find_method(schedule).plan(task, None, schedule, threads).thread_bytes * threads
