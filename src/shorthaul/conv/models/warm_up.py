"""Everything that a model's first calls would have to wait for, done before them, and the whole looked at.

>>> import torch
>>> from torch import nn
>>> from shorthaul.conv.models.replace import replace_convs
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
>>> report = replace_convs(model)
>>> warm_up(model, torch.randn(1, 3, 16, 16)).mode
'inference'
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from shorthaul.conv.models.replace import ReplacedWindowOrderLayer, call_with, split_example
from shorthaul.conv.models.replaced_layer import ReplacedLayer
from shorthaul.conv.planning.edition import kernel_edition
from shorthaul.fallbacks import note_fallback
from shorthaul.interrupts import deferred_interrupts
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.compiling.loading import compiling, run_compiled
from shorthaul.jit.compiling.progress import progress_on_terminal
from shorthaul.meter import meter

_REPLACED, _ORIGINAL = "replaced", "original"


@dataclass(frozen=True)
class WarmUpReport:
    """What `warm_up` did."""

    mode: str  # inference or training
    compiled: tuple[str, ...]  # the kernels that were not there before
    layers: tuple[ReplacedLayer, ...]  # the replaced convolutions of the model
    choice: Choice | None  # for the model as a whole; None where there was nothing to compare

    @property
    def is_reverted(self) -> bool:
        """Whether the model as a whole was slower with its replaced layers, which are left out now."""
        return self.choice is not None and self.choice.name == _ORIGINAL

    @property
    def times_faster(self) -> float | None:
        """How many times faster the model was measured to be with its replaced layers."""
        if self.choice is None or not {_REPLACED, _ORIGINAL} <= self.choice.seconds.keys():
            return None
        return self.choice.seconds[_ORIGINAL] / self.choice.seconds[_REPLACED]


def warm_up(
    model: nn.Module,
    example: Any,
    *,
    is_training: bool | None = None,
    compare: bool = True,
    is_quiet: bool = False,
) -> WarmUpReport:
    """Compile what `model` needs for inputs like `example`, decide what is to be decided, and wait for it.

    The model runs on the example a few times; for training also backwards, from the sum of what it
    returns. Its buffers, gradients, training flags and PyTorch's random numbers are as before when
    this returns. Then its first call compiles nothing.

    A model with replaced convolutions is compared with the original, as a whole: where it was
    slower, its layers are left to ATen in this mode, which the report and the log say.

    Args:
        model: The model.
        example: A tensor, a tuple of arguments, or a dictionary of arguments by name.
        is_training: Whether it is going to be trained; None (default) takes `model.training`.
        compare: Compare the whole with the original (default True).
        is_quiet: Show no progress bar (default False).
    """
    trains = model.training if is_training is None else is_training
    step = functools.partial(_run, model, example, trains)
    with _kept_as_it_is(model), meter() as counted, progress_on_terminal(not is_quiet) as show:
        model.train(trains)
        run_compiled(step, functools.partial(show, "compiling"))
        layers = tuple(_replaced_layers(model))
        mode = "training" if trains else "inference"
        choice = None
        if compare and any(each.is_ours(mode) for each in layers):
            key = _key(model, example, layers, mode)
            choice = _compare(key, layers, mode, step, functools.partial(show, "comparing"))
    if choice is not None and choice.name == _ORIGINAL:
        _revert(layers, mode)
        note_fallback(
            f"{type(model).__name__} in {mode}", "its own convolutions", "replaced ones were slower"
        )
    return WarmUpReport(mode, tuple(counted.compiles), layers, choice)


def _run(model: nn.Module, example: Any, trains: bool) -> None:
    if not trains:
        with torch.no_grad():
            call_with(model, example)
        return
    parameters = [each for each in model.parameters() if each.requires_grad]
    with torch.enable_grad():
        outputs = [
            each
            for each in tree_leaves(call_with(model, example))
            if isinstance(each, Tensor) and each.requires_grad
        ]
        if outputs and parameters:
            ones = [torch.ones_like(each) for each in outputs]
            torch.autograd.grad(outputs, parameters, ones, allow_unused=True)


@contextlib.contextmanager
def _kept_as_it_is(model: nn.Module) -> Iterator[None]:
    """Buffers, training flags and random numbers are afterwards what they were before."""
    flags = {each: each.training for each in model.modules()}
    buffers = [(each, each.clone()) for each in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with deferred_interrupts:
            for module, flag in flags.items():
                module.training = flag
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _replaced_layers(model: nn.Module) -> Iterator[ReplacedLayer]:
    for module in model.modules():
        if isinstance(module, ReplacedWindowOrderLayer):
            yield module.replacement


def _compare(
    key: str,
    layers: Sequence[ReplacedLayer],
    mode: str,
    step: Callable[[], None],
    on_progress: Callable[[int, int], None],
) -> Choice:
    _undo_revert(layers, mode)

    def run_original() -> None:
        _revert(layers, mode)
        try:
            step()
        finally:
            _undo_revert(layers, mode)

    candidates = [Candidate(_REPLACED, step), Candidate(_ORIGINAL, run_original)]
    with compiling("wait"):
        return autotune(
            key,
            candidates,
            preferred=_ORIGINAL,
            on_progress=lambda name: on_progress(name == _ORIGINAL, len(candidates)),
        )


def _revert(layers: Sequence[ReplacedLayer], mode: str) -> None:
    for each in layers:
        each.revert(mode)


def _undo_revert(layers: Sequence[ReplacedLayer], mode: str) -> None:
    for each in layers:
        each.undo_revert(mode)


def _key(model: nn.Module, example: Any, layers: Sequence[ReplacedLayer], mode: str) -> str:
    """What a comparison holds for: the model's modules, which of them are ours, and its inputs as they lie."""
    ours = (
        f"{each.name} {each.policy} {each.problem and each.problem.describe()} "
        f"{sorted((name, choice.name) for name, choice in each.choices.items())}"
        for each in layers
    )
    told = "\n".join((repr(model), *ours))
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    inputs = " ".join(
        f"{'x'.join(map(str, each.shape))} {each.dtype} {each.stride()}"
        for each in tree_leaves(split_example(example))
        if isinstance(each, Tensor)
    )
    versions = f"kernels {kernel_edition()} torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"model {type(model).__name__} {digest} {inputs} {mode} threads {threads} {versions}"
