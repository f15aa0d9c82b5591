"""`shorthaul tune`: measure how a model's convolutions are best carried out here, and remember it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shorthaul.cli.console import make_console
from shorthaul.cli.explain import import_object

if TYPE_CHECKING:  # it needs torch
    from torch import nn


@click.command()
@click.argument("model", metavar="MODULE:MODEL")
@click.option(
    "--input",
    "shape",
    required=True,
    metavar="SIZES",
    help="Sizes of one input, such as 1x3x224x224.",
)
@click.option("--channels-last", is_flag=True, help="Lay the input out as channels last.")
@click.option("--inexact", is_flag=True, help="Allow Winograd, as exact=False does.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads, instead of PyTorch's.")
def tune(model: str, shape: str, channels_last: bool, inexact: bool, threads: int | None) -> None:
    """Measure the kernels of a model at one input size.

    MODULE:MODEL is imported, with the current directory on the path; a function is called for its
    model. The fastest schedules are remembered for this processor, input size and thread count:
    `shorthaul cache list` shows them, `shorthaul cache clear --only tuning` forgets them.
    """
    import torch

    from shorthaul.conv import replace_convs

    sizes = parse_sizes(shape)
    found = require_model(model, import_object(model))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        example = torch.randn(sizes, dtype=torch.get_default_dtype(), device="cpu")
        if channels_last and len(sizes) in (4, 5):
            last = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
            example = example.to(memory_format=last)
        report = replace_convs(
            found, policy="always", tune=True, exact=not inexact, example=example
        )
        if not report.layers:
            raise click.ClickException(f"{model} has no convolution that could be tuned.")
        make_console().print(report.table())
        report.revert()
    finally:
        torch.set_num_threads(before)


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes in `1x3x224x224`.

    >>> parse_sizes("1x3x224x224")
    (1, 3, 224, 224)
    """
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(
            f"expected positive sizes with x in between, such as 1x3x224x224; got {text!r}.",
            param_hint="--input",
        )
    return tuple(map(int, parts))


def require_model(name: str, found: Any) -> nn.Module:
    """The module, or what a function without arguments makes; else an error."""
    from torch import nn

    made = found if isinstance(found, nn.Module) or not callable(found) else found()
    if not isinstance(made, nn.Module):
        raise click.ClickException(
            f"{name} is {type(made).__name__}; expected an nn.Module, or a function that makes one."
        )
    return made
