"""Memory by method: the published figures, exactly, and the promise of ours."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from shorthaul.conv.execution.plan import plan_forward
from shorthaul.conv.planning.estimate import TWELVE_LAYERS, Layer, estimate
from shorthaul.conv.problem import ConvProblem
from shorthaul.conv.reference import window_tensor
from shorthaul.errors import ConvolutionError

MIB = 2**20
# name: GFLOP, input, output, im2col, im2win in MiB, im2col / im2win, of the published table
PUBLISHED = {
    "conv1": (0.211, 0.59, 1.11, 4.19, 1.57, 2.67),
    "conv2": (0.219, 0.61, 1.15, 4.34, 1.63, 2.67),
    "conv3": (0.232, 0.59, 3.01, 6.91, 2.02, 3.42),
    "conv4": (4.769, 12.25, 2.90, 142.1, 41.7, 3.41),
    "conv5": (0.492, 0.21, 0.39, 3.66, 0.88, 4.17),
    "conv6": (0.236, 0.14, 0.20, 0.88, 0.35, 2.50),
    "conv7": (0.170, 0.57, 12.03, 5.08, 1.71, 2.97),
    "conv8": (1.784, 3.06, 5.91, 26.6, 9.02, 2.95),
    "conv9": (0.215, 0.77, 0.71, 6.41, 2.21, 2.89),
    "conv10": (0.199, 0.38, 0.33, 2.97, 1.07, 2.79),
    "conv11": (0.170, 0.19, 0.14, 1.27, 0.49, 2.57),
    "conv12": (0.118, 0.10, 0.05, 0.44, 0.21, 2.14),
}


@pytest.mark.parametrize("layer", TWELVE_LAYERS, ids=lambda layer: layer.name)
def test_the_published_table(layer: Layer) -> None:
    got = estimate(layer.problem, 1, layer.sizes, threads=1)
    flops, input_mib, output_mib, im2col_mib, im2win_mib, ratio = PUBLISHED[layer.name]
    assert round(got.flops / 1e9, 3) == flops
    assert round(got.input_bytes / MIB, 2) == input_mib
    assert round(got.output_bytes / MIB, 2) == output_mib
    assert got.im2col_bytes / MIB == pytest.approx(
        im2col_mib, abs=0.05 if im2col_mib > 20 else 0.005
    )
    assert got.im2win_bytes / MIB == pytest.approx(
        im2win_mib, abs=0.05 if im2win_mib > 20 else 0.005
    )
    assert round(got.im2col_bytes / got.im2win_bytes, 2) == ratio


def test_the_published_mean() -> None:
    every = [estimate(each.problem, 1, each.sizes, threads=1) for each in TWELVE_LAYERS]
    ratios = [each.im2col_bytes / each.im2win_bytes for each in every]
    assert round(sum(ratios) / len(ratios), 3) == 2.928


@pytest.mark.parametrize("layer", TWELVE_LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_ours_is_under_a_megabyte_per_thread(layer: Layer, batch: int) -> None:
    for layout in ("contiguous", "channels_last"):
        problem = replace(layer.problem, layout=layout)
        got = estimate(problem, batch, layer.sizes, threads=2)
        assert got.ours_bytes / got.threads < MIB
        assert got.direct_bytes == 0


def test_bytes_are_those_of_the_tensors() -> None:
    problem = ConvProblem(
        4, 6, (1, 3, 2), stride=(1, 2, 1), padding=((0, 0), (1, 0), (0, 2)), groups=2,
        dtype=torch.float64,
    )  # fmt: skip
    sizes = (1, 9, 7)
    image = torch.zeros(3, 4, *sizes, dtype=torch.float64)
    got = estimate(problem, 3, sizes)
    assert got.im2win_bytes == window_tensor(problem, image).nbytes
    padded = torch.nn.functional.pad(image.squeeze(2), (0, 2, 1, 0))
    lowered = torch.nn.functional.unfold(padded, (3, 2), stride=(2, 1))
    assert got.im2col_bytes == lowered.nbytes
    assert got.input_bytes == image.nbytes


def test_bands_that_do_not_overlap_hold_nothing_twice() -> None:
    problem = ConvProblem(3, 4, (1, 2, 2), stride=(1, 2, 2))
    assert estimate(problem, 1, (1, 8, 8)).im2win_bytes == 3 * 8 * 8 * 4


def test_share_of_peak_falls_where_little_is_computed_per_byte() -> None:
    shares = {
        each.name: estimate(each.problem, 1, each.sizes, threads=1).peak_share
        for each in TWELVE_LAYERS
    }
    assert max(shares.values()) < 1
    assert min(shares, key=shares.__getitem__) == "conv7"
    assert shares["conv5"] > 0.95


def test_the_table_names_every_method() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(estimate(TWELVE_LAYERS[0].problem, 1, TWELVE_LAYERS[0].sizes, threads=2).table())
    text = console.export_text()
    for word in ("direct", "im2col", "MEC", "im2win, whole tensor", "shorthaul, 2 threads", "peak"):
        assert word in text


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ConvolutionError, match="larger than the padded input"):
        estimate(ConvProblem(1, 1, (1, 5, 5)), 1, (1, 4, 4))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("channels", "groups"), [((64, 1), 1), ((64, 64), 64), ((24, 40), 1), ((256, 256), 32)]
)
def test_ours_is_what_the_kernels_ask_for(
    channels: tuple[int, int], groups: int, layout: str
) -> None:
    problem = ConvProblem(*channels, (1, 3, 3), groups=groups, layout=layout)
    call = plan_forward(problem, (2, 1, 20, 20), None, 2)
    assert estimate(problem, 2, (1, 20, 20), threads=2).ours_bytes == 2 * call.thread_bytes
