"""Convolution problems that hypothesis draws, small enough for a reference in plain loops."""

import itertools
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from shorthaul.conv.problem import ACTIVATIONS, LAYOUTS, PADDING_MODES, ConvProblem, Triple


@dataclass(frozen=True)
class Case:
    """A problem together with batch and image sizes that it can take."""

    problem: ConvProblem
    batch: int
    sizes: Triple

    def tensors(self, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Random input in the problem's layout, weight and bias."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(
                self.problem.dtype
            )

        image = normal(self.batch, self.problem.in_channels, *self.sizes)
        if self.problem.layout == "channels_last":
            image = image.contiguous(memory_format=torch.channels_last_3d)
        bias = normal(self.problem.out_channels) if self.problem.has_bias else None
        return image, normal(*self.problem.weight_shape), bias


# A kernel of its own is compiled for each dtype and layout, and for each planar tile, which follows
# from the channels per group. Default runs draw from these; slow ones draw from everything.
QUICK = (
    (torch.float32, "contiguous"),
    (torch.float32, "channels_last"),
    (torch.float64, "contiguous"),
    (torch.bfloat16, "channels_last"),
)
QUICK_CHANNELS = ((2, 4, 5), (2, 4, 5, 9))  # of the input and of the output

# Every activation is another kernel: each is tested in one of the layouts, except in slow runs.
ACTIVATION_LAYOUTS = tuple(
    zip(ACTIVATIONS, itertools.cycle(("channels_last", "contiguous")), strict=False)
)


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: tuple[torch.dtype, ...] = (torch.float64,),
    *,
    is_quick: bool = False,
) -> Case:
    dimensions = draw(st.integers(1, 3))
    leading = 3 - dimensions

    def triple(low: int, high: int) -> Triple:
        drawn = draw(st.lists(st.integers(low, high), min_size=dimensions, max_size=dimensions))
        depth, height, width = [1] * leading + drawn
        return depth, height, width

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    sizes, kernel = triple(2, 9), triple(1, 4)
    mode = draw(st.sampled_from(PADDING_MODES))
    pads = [
        tuple(draw(st.integers(0, min(3, size - 1))) for _ in range(2))
        if axis >= leading
        else (0, 0)
        for axis, size in enumerate(sizes)
    ]
    dilation = triple(1, 2)
    # A dilated kernel that is too large for its padded image becomes one that fits.
    kernel_fits = tuple(
        max(1, min(k, (size + sum(pair) - 1) // d + 1))
        for k, size, pair, d in zip(kernel, sizes, pads, dilation, strict=True)
    )
    pairs = QUICK if is_quick else tuple(itertools.product(dtypes, LAYOUTS))
    dtype, layout = draw(st.sampled_from(pairs))
    channels = (
        [st.sampled_from(each) for each in QUICK_CHANNELS]
        if is_quick
        else [st.integers(1, 5), st.integers(1, 9)]
    )
    problem = ConvProblem(
        in_channels=groups * draw(channels[0]),
        out_channels=groups * draw(channels[1]),
        kernel=kernel_fits,  # type: ignore[arg-type]
        stride=triple(1, 3),
        dilation=dilation,
        padding=tuple(pads),  # type: ignore[arg-type]
        padding_mode=mode,
        groups=groups,
        dtype=dtype,
        layout=layout,
        has_bias=draw(st.booleans()),
    )
    return Case(problem, draw(st.integers(1, 3)), sizes)


def in_double(problem: ConvProblem) -> ConvProblem:
    """The same problem in double precision, for the reference."""
    return replace(problem, dtype=torch.float64)
