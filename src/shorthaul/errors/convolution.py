"""Errors about the arguments of convolutions."""

from __future__ import annotations

from shorthaul.errors.root import ShorthaulError


class ConvolutionError(ShorthaulError, RuntimeError, ValueError):
    """A convolution was asked for with arguments or shapes that do not fit together."""
