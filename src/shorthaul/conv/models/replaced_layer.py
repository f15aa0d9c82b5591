"""One replaced layer: how it decides between our kernels and ATen, and what it has decided.

A choice is measured for each mode and for sizes that are alike, at the first call of that kind at which it can be.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shorthaul.conv.aten import apply_activation, pads_itself
from shorthaul.conv.functional import autocast, problem_of, read_geometry
from shorthaul.conv.models.fold import Fold
from shorthaul.conv.planning.choice import choose_schedule, remembered_schedule
from shorthaul.conv.planning.edition import kernel_edition
from shorthaul.conv.planning.estimate import estimate
from shorthaul.conv.problem import KERNEL_DTYPES, ConvProblem, Triple
from shorthaul.conv.problem.arguments import expand_dimensions
from shorthaul.conv.readiness import Needs, can_prepare, find_needs, has_kernels
from shorthaul.errors import TuningError
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.autotune import recall_choice
from shorthaul.jit.compiling.loading import compiling, is_waited_for
from shorthaul.jit.compiling.pool import compilers
from shorthaul.jit.operators import are_ordinary, has_saving_hooks, hidden_from_hooks, is_watched
from shorthaul.jit.runtime import kernel_threads
from shorthaul.settings import settings

OURS = "window order"
ATEN = "aten"
# By whether there is a backward pass, and whether the input has a gradient in it.
_MODES = {
    (False, False): "inference",
    (True, True): "training",
    (True, False): "training, input given",
}
# Calls whose choice is found without posing their problem; a model that never sees a size twice has no use for more.
_MOST_SITUATIONS = 1024


@dataclass(frozen=True)
class _Call:
    """What a choice is made for."""

    problem: ConvProblem
    batch: int
    sizes: Triple
    needs: Needs

    @property
    def mode(self) -> str:
        return _MODES[self.needs.is_training, self.needs.input]

    @property
    def key(self) -> str:
        """What a measurement holds for: sizes as near as the next power of two choose alike."""
        sizes = "x".join(str(_round_up(each)) for each in (self.batch, *self.sizes))
        versions = f"kernels {kernel_edition()} torch {torch.__version__}"
        threads = torch.get_num_threads()
        return f"layer {self.problem.describe()} {sizes} {self.mode} threads {threads} {versions}"


@dataclass
class ReplacedLayer:
    """One replaced layer: how it decides, and what it has decided."""

    name: str  # its path in the model
    policy: str  # auto or always
    fold: Fold | None = None  # what is folded into it
    note: str = ""  # why something was not done
    problem: ConvProblem | None = None  # as first seen, like the two below
    batch: int = 0  # images
    sizes: Triple = (0, 0, 0)  # their depth, height and width
    # By mode (inference; training; training, input given): the first one, for sizes as first seen.
    choices: dict[str, Choice] = field(default_factory=dict)
    # Modes (inference, training) in which it is left to ATen: the model as a whole was slower.
    reverted: set[str] = field(default_factory=set)
    # Every choice, by mode and by what it was made for.
    _decided: dict[tuple[str, str], Choice] = field(default_factory=dict, repr=False)
    _by_situation: dict[tuple[Any, ...], str] = field(default_factory=dict, repr=False)
    _unknown: set[str] = field(
        default_factory=set, repr=False
    )  # what nobody remembers a choice for

    def run(self, layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's output by the way that was measured to be faster for this mode.

        Args:
            layer: The module.
            input: Its input.
            weight: The weight to use, folded or the module's own.
            bias: The bias to use, or None.
        """
        if self.fold is None or not self.fold.is_active():
            return self._run(layer, input, weight, bias, None)
        weight, bias = self.fold.apply(weight, bias)
        output = self._run(layer, input, weight, bias, self.fold.activation_name)
        return self.fold.mark(output)

    def _run(
        self, layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> Tensor:
        if self.problem is None and not _is_out_of_sight(input, weight, bias):
            self._note(layer, input, weight, bias, activation)
        is_aten = (self.reverted and self._is_reverted(input, weight, bias)) or (
            self.policy == "auto" and self.choose(layer, input, weight, bias, activation) == ATEN
        )
        if is_aten and not self._would_be_seen(input, weight, bias):
            return _run_aten(layer, input, weight, bias, activation)
        output: Tensor = layer.run(input, weight, bias, activation)
        return output

    def _would_be_seen(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether a checkpoint could tell ATen from ours, by what is saved for the backward pass.

        It saves a padded copy where ours saves the image. A layer that changed its mind between the forward pass and
        its repetition would fail, so there it is always ours that saves, until its kernels come by ATen.
        """
        return (
            self.problem is not None
            and not pads_itself(self.problem)
            and not torch.compiler.is_compiling()
            and has_saving_hooks()
            and find_needs(input, weight, bias).is_training
        )

    def choose(
        self, layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> str:
        """Ours or ATen's, measured once for each mode and for sizes that are alike; ATen's until that can be done.

        It can be when the kernels are there and no compiler is at work, which would slow down both.

        Args:
            layer: The module.
            input: Its input.
            weight: The weight to use.
            bias: The bias to use, or None.
            activation: The activation that is folded into the convolution, or None.
        """
        needs = find_needs(input, weight, bias)
        if _is_out_of_sight(input, weight, bias):  # nothing can be measured now
            mode = _MODES[needs.is_training, needs.input]
            return self.choices[mode].name if mode in self.choices else OURS
        cast_to = (
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        )
        situation = (
            needs, activation, input.shape, input.stride(), input.dtype, cast_to,
            torch.get_num_threads(),
        )  # fmt: skip
        chosen = self._by_situation.get(situation)
        if chosen is not None:
            return chosen
        if not input.numel() or input.dim() not in (layer.dimensions + 1, layer.dimensions + 2):
            return OURS  # nothing can be measured, and ours says what is wrong
        tensors = [each.detach() for each in (input, weight, bias) if each is not None]
        call = _pose(layer, input, weight, bias, None if needs.is_training else activation, needs)
        try:
            choice = self._decide(layer, call, tensors, activation)
        except TuningError:
            return OURS  # both failed: the caller shall see why
        if choice is None:
            return ATEN
        if len(self._by_situation) >= _MOST_SITUATIONS:
            self._by_situation.clear()
        self._by_situation[situation] = choice.name
        return choice.name

    def _decide(
        self, layer: Any, call: _Call, tensors: list[Tensor], activation: str | None
    ) -> Choice | None:
        """What was chosen for such a call, or is chosen now; `None` while that would be too early."""
        mode, key = call.mode, call.key
        choice = self._decided.get((mode, key))
        if choice is not None:
            return choice
        is_known = settings.autotune != "force" and self._is_remembered(key)
        if not is_known and not _can_measure(layer, call, tensors[0]):
            return None
        choice = self._decided[mode, key] = _measure(layer, tensors, activation, call)
        self.choices.setdefault(mode, choice)
        return choice

    def _is_remembered(self, key: str) -> bool:
        """Whether a choice lies on disk, where calls that wait for kernels look once."""
        if key not in self._unknown and recall_choice(key) is None:
            self._unknown.add(key)
        return key not in self._unknown

    def is_ours(self, mode: str) -> bool:
        """Whether shorthaul computes it in this mode, as far as its own measurement goes.

        Args:
            mode: inference or training.
        """
        return self.policy == "always" or any(
            choice.name == OURS and made_for.startswith(mode)
            for (made_for, _), choice in self._decided.items()
        )

    def revert(self, mode: str) -> None:
        """Leave the layer to ATen in this mode, with nothing folded.

        Args:
            mode: inference or training.
        """
        self.reverted.add(mode)
        if self.fold is not None and mode == "inference":
            self.fold.is_suspended = True

    def undo_revert(self, mode: str) -> None:
        """Undo `revert`.

        Args:
            mode: inference or training.
        """
        self.reverted.discard(mode)
        if self.fold is not None and mode == "inference":
            self.fold.is_suspended = False

    def _is_reverted(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        is_training = find_needs(input, weight, bias).is_training
        return ("training" if is_training else "inference") in self.reverted

    def workspace_bytes(self) -> int | None:
        """Scratch memory of our kernel, all threads together; `None` before the first call."""
        if self.problem is None:
            return None
        return estimate(self.problem, self.batch, self.sizes).ours_bytes

    def _note(
        self, layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> None:
        dimensions = layer.dimensions
        seen = autocast(input)[0]
        if input.dim() in (dimensions + 1, dimensions + 2) and seen.dtype in KERNEL_DTYPES:
            call = _pose(layer, input, weight, bias, activation, find_needs(input, weight, bias))
            self.problem, self.batch, self.sizes = call.problem, call.batch, call.sizes

    def describe_schedule(self) -> str:
        """The schedule of our kernel, and whether it was measured or estimated; for the table."""
        if self.problem is None or self.problem.dtype not in KERNEL_DTYPES:
            return ""
        sizes, threads = (self.batch, *self.sizes), kernel_threads()
        measured = remembered_schedule(self.problem, sizes, threads)
        if measured is not None:
            return f"{measured.describe()} (measured)"
        return choose_schedule(self.problem, sizes).describe()

    def describe_choice(self) -> tuple[str, str]:
        """What was chosen, and how many times faster ours was measured to be; for the table."""
        if self.reverted:
            modes = " and ".join(sorted(self.reverted))
            return f"{ATEN} in {modes}: the whole model was slower", ""
        if self.policy == "always":
            return OURS, ""
        if not self.choices:
            return "when compiled" if self.problem is not None else "at the first call", ""
        chosen, ratios = [], []
        for mode, choice in sorted(self.choices.items()):
            label = f"{mode}: " if len(self.choices) > 1 else ""
            made = {each.name: None for (of, _), each in self._decided.items() if of == mode}
            chosen.append(f"{label}{' or '.join(made)}")
            if {OURS, ATEN} <= choice.seconds.keys():
                ratios.append(f"{choice.seconds[ATEN] / choice.seconds[OURS]:.2f}")
        return ", ".join(chosen), ", ".join(ratios)


def _is_out_of_sight(*tensors: Tensor | None) -> bool:
    """Whether a call's sizes and times are not the layer's own: traced, transformed or recorded."""
    return is_watched() or not are_ordinary(*tensors)


def _pose(
    layer: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    needs: Needs,
) -> _Call:
    """The call as our kernels would see it."""
    dimensions = layer.dimensions
    geometry = read_geometry(
        dimensions, tuple(weight.shape[2:]), layer.stride, layer.padding, layer.dilation,
        layer.groups, layer.padding_mode,
    )  # fmt: skip
    input, weight, bias = autocast(input, weight, bias)
    problem = problem_of(dimensions, input, weight, bias, geometry, activation, layer.exact)
    batch, _, depth, height, width = expand_dimensions(input, dimensions).shape
    return _Call(problem, batch, (depth, height, width), needs)


def _can_measure(layer: Any, call: _Call, input: Tensor) -> bool:
    """Whether kernels and processor are free to be measured; else the kernels are asked for."""
    if is_waited_for(by_default=layer.wait):
        return True
    images = expand_dimensions(input, layer.dimensions)
    if not can_prepare(call.problem, images):
        return True
    is_there = has_kernels(call.problem, (call.batch, *call.sizes), call.needs, waits=False)
    return is_there and compilers.is_idle()


def _run_aten(
    layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    output: Tensor = layer.plain._conv_forward(layer, input, weight, bias)
    return apply_activation(output, activation, is_own=True)


def _round_up(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()


def _measure(layer: Any, tensors: list[Tensor], activation: str | None, call: _Call) -> Choice:
    needs = call.needs

    def run(convolve: Any) -> None:
        if not needs.is_training:
            with torch.no_grad():
                convolve(layer, *tensors)
            return
        inputs = [
            each.detach().requires_grad_(need) for each, need in zip(tensors, needs, strict=False)
        ]
        output = convolve(layer, *inputs)
        leaves = [each for each in inputs if each.requires_grad]
        torch.autograd.grad(output, leaves, torch.ones_like(output))

    def ours(layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output: Tensor = layer.run(input, weight, bias, activation)
        return output

    def aten(layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _run_aten(layer, input, weight, bias, activation)

    # Waiting, lest ATen is compared with itself.
    with warnings.catch_warnings(), torch.enable_grad(), compiling("wait"), hidden_from_hooks():
        warnings.simplefilter("ignore")  # ATen's, on copies for "same" padding
        return autotune(
            call.key,
            [Candidate(OURS, lambda: run(ours)), Candidate(ATEN, lambda: run(aten))],
            preferred=ATEN,
        )
