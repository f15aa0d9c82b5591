"""A model's convolutions replaced in place, layer by layer where it helps, and put back.

>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
>>> report = replace_convs(model, policy="always", fold=True)
>>> model[0]
Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
>>> [(each.name, each.note) for each in report.layers]
[('0', 'batch norm 1 and activation 2 folded in eval mode')]
>>> report.revert()
>>> type(model[0]) is nn.Conv2d
True

A layer is replaced by changing its class, so parameters, `state_dict`, hooks, names and everybody's
references stay what they are.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from shorthaul.conv.aten import apply_activation
from shorthaul.conv.functional import KERNEL_DTYPES, Geometry, autocast, problem_of, read_geometry
from shorthaul.conv.layer import Conv1d, Conv2d, Conv3d, WindowOrderLayer
from shorthaul.conv.models.fold import Fold, find_folds, fold_away, restore
from shorthaul.conv.planning.choice import choose_schedule, remembered_schedule
from shorthaul.conv.planning.edition import kernel_edition
from shorthaul.conv.planning.estimate import estimate
from shorthaul.conv.problem import ConvProblem, Triple
from shorthaul.conv.problem.arguments import canonical_triple, expand_dimensions
from shorthaul.conv.readiness import Needs, can_prepare, find_needs, has_kernels
from shorthaul.errors import ConvolutionError, TuningError
from shorthaul.jit import Candidate, Choice, autotune
from shorthaul.jit.autotune import recall_choice
from shorthaul.jit.compiling.loading import compiling, is_waited_for, run_compiled
from shorthaul.jit.compiling.pool import compilers
from shorthaul.jit.compiling.progress import progress_on_terminal
from shorthaul.jit.operators import are_ordinary, is_watched
from shorthaul.jit.runtime import kernel_threads
from shorthaul.module_swap import Swap, swap_class
from shorthaul.report_table import layer_table
from shorthaul.settings import settings
from shorthaul.units import format_bytes

POLICIES = ("auto", "always")
# By whether there is a backward pass, and whether the input has a gradient in it.
_MODES = {
    (False, False): "inference",
    (True, True): "training",
    (True, False): "training, input given",
}
_OURS = "window order"
_ATEN = "aten"
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
    choices: dict[str, Choice] = field(default_factory=dict)  # by mode: inference, training
    # Modes (inference, training) in which it is left to ATen: the model as a whole was slower.
    reverted: set[str] = field(default_factory=set)

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
        if (self.reverted and self._is_reverted(input, weight, bias)) or (
            self.policy == "auto" and self.choose(layer, input, weight, bias, activation) == _ATEN
        ):
            return _run_aten(layer, input, weight, bias, activation)
        output: Tensor = layer.run(input, weight, bias, activation)
        return output

    def choose(
        self, layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> str:
        """Ours or ATen's, measured once for each mode; ATen's until that can be done.

        It can be when the kernels are there and no compiler is at work, which would slow down both.

        Args:
            layer: The module.
            input: Its input.
            weight: The weight to use.
            bias: The bias to use, or None.
            activation: The activation that is folded into the convolution, or None.
        """
        needs = find_needs(input, weight, bias)
        mode = _MODES[needs.is_training, needs.input]
        if mode not in self.choices:
            if _is_out_of_sight(input, weight, bias) or not input.numel():
                return _OURS  # nothing can be measured now
            key = self._key(mode)
            remembered = recall_choice(key)
            is_known = remembered is not None and settings.autotune != "force"
            if not is_known and not self._can_measure(
                layer, input, weight, bias, activation, needs
            ):
                return _ATEN
            tensors = [each.detach() for each in (input, weight, bias) if each is not None]
            try:
                self.choices[mode] = _measure(layer, tensors, activation, needs, key)
            except TuningError:
                return _OURS  # both failed: the caller shall see why
        return self.choices[mode].name

    def _can_measure(
        self,
        layer: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None,
        needs: Needs,
    ) -> bool:
        """Whether kernels and processor are free to be measured; else the kernels are asked for."""
        waits = is_waited_for(by_default=layer.wait)
        dimensions = layer.dimensions
        if waits or input.dim() not in (dimensions + 1, dimensions + 2):
            return True
        input, weight, bias = autocast(input, weight, bias)
        geometry = _geometry_of(layer, weight)
        activation = None if torch.is_grad_enabled() else activation
        problem = problem_of(dimensions, input, weight, bias, geometry, activation, layer.exact)
        images = expand_dimensions(input, dimensions)
        if not can_prepare(problem, images):
            return True
        batch, _, depth, height, width = images.shape
        is_there = has_kernels(problem, (batch, depth, height, width), needs, waits=False)
        return is_there and compilers.is_idle()

    def is_ours(self, mode: str) -> bool:
        """Whether shorthaul computes it in this mode, as far as its own measurement goes.

        Args:
            mode: inference or training.
        """
        chosen = [each.name for name, each in self.choices.items() if name.startswith(mode)]
        return self.policy == "always" or _OURS in chosen

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
        geometry = _geometry_of(layer, weight)
        if input.dim() in (dimensions + 1, dimensions + 2) and input.dtype in KERNEL_DTYPES:
            problem = problem_of(dimensions, input, weight, bias, geometry, activation, layer.exact)
            self.batch = input.shape[0] if input.dim() == dimensions + 2 else 1
            self.sizes = canonical_triple("size", input.shape[-dimensions:], dimensions)
            self.problem = problem

    def _key(self, mode: str) -> str:
        """What a measurement holds for: sizes as near as the next power of two choose alike."""
        words = "" if self.problem is None else self.problem.describe()
        sizes = "x".join(str(_round_up(each)) for each in (self.batch, *self.sizes))
        versions = f"kernels {kernel_edition()} torch {torch.__version__}"
        return f"conv layer {words} {sizes} {mode} threads {torch.get_num_threads()} {versions}"

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
            return f"{_ATEN} in {modes}: the whole model was slower", ""
        if self.policy == "always":
            return _OURS, ""
        if not self.choices:
            return "when compiled" if self.problem is not None else "at the first call", ""
        chosen, ratios = [], []
        for mode, choice in sorted(self.choices.items()):
            label = f"{mode}: " if len(self.choices) > 1 else ""
            chosen.append(f"{label}{choice.name}")
            if {_OURS, _ATEN} <= choice.seconds.keys():
                ratios.append(f"{choice.seconds[_ATEN] / choice.seconds[_OURS]:.2f}")
        return ", ".join(chosen), ", ".join(ratios)


def _is_out_of_sight(*tensors: Tensor | None) -> bool:
    """Whether a call's sizes and times are not the layer's own: traced, transformed or recorded."""
    return is_watched() or not are_ordinary(*tensors)


def _geometry_of(layer: Any, weight: Tensor) -> Geometry:
    return read_geometry(
        layer.dimensions, tuple(weight.shape[2:]), layer.stride, layer.padding, layer.dilation,
        layer.groups, layer.padding_mode,
    )  # fmt: skip


@dataclass
class ReplacementReport:
    """What `replace_convs` did; it is filled in further when layers are first called."""

    model: nn.Module  # as it is now
    layers: list[ReplacedLayer]  # those replaced
    left_alone: dict[str, str]  # name -> reason
    _swaps: list[Swap] = field(repr=False)

    def summary(self) -> str:
        """One line, for logs."""
        chosen = Counter(each.describe_choice()[0] for each in self.layers)
        parts = [f"{times:,} {what}" for what, times in chosen.most_common()]
        if self.left_alone:
            parts.append(f"{len(self.left_alone):,} left alone")
        return f"{len(self.layers) + len(self.left_alone):,} convolutions: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        layers = [
            {
                "layer": each.name,
                "problem": None if each.problem is None else each.problem.describe(),
                "chosen": {mode: choice.name for mode, choice in each.choices.items()},
                "seconds": {mode: dict(choice.seconds) for mode, choice in each.choices.items()},
                "schedule": each.describe_schedule(),
                "workspace_bytes": each.workspace_bytes(),
                "note": each.note,
            }
            for each in self.layers
        ]
        return {"layers": layers, "left_alone": dict(self.left_alone)}

    def table(self, details: bool = False) -> Table:
        """A table for `rich.print`, which fits 80 columns.

        Args:
            details: Whether each layer's problem, schedule and workspace stand below its name
                (default False).
        """
        has_notes = bool(self.left_alone) or any(each.note for each in self.layers)
        headings = ("layer", "chosen", "times faster", *(("note",) if has_notes else ()))
        table = layer_table(self.summary(), *headings, numbers=frozenset({"times faster"}))
        for each in self.layers:
            lines = [each.name]
            workspace_bytes = each.workspace_bytes()
            if details and each.problem is not None:
                lines += [each.problem.describe(), each.describe_schedule()]
            if details and workspace_bytes is not None:
                lines.append(f"workspace {format_bytes(workspace_bytes)}")
            notes = (each.note,) if has_notes else ()
            table.add_row("\n  ".join(filter(None, lines)), *each.describe_choice(), *notes)
        for name, reason in self.left_alone.items():
            table.add_row(name, "left alone", "", reason)
        return table

    def revert(self) -> None:
        """Put every layer back to what it was; a second call does nothing."""
        for swap in self._swaps:
            replacement: ReplacedLayer | None = swap.module.__dict__.get("replacement")
            if replacement is not None and replacement.fold is not None:
                for each in (replacement.fold.norm, replacement.fold.activation):
                    if each is not None:
                        restore(each)
            swap.undo()
        self._swaps.clear()


class ReplacedWindowOrderLayer(WindowOrderLayer):
    """What the three replaced layers have in common: they ask their replacement how to compute."""

    replacement: ReplacedLayer

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.replacement.run(self, input, weight, bias)

    def _get_name(self) -> str:
        return f"Conv{self.dimensions}d"


class ReplacedConv1d(ReplacedWindowOrderLayer, Conv1d):
    """An `nn.Conv1d` after `replace_convs`."""


class ReplacedConv2d(ReplacedWindowOrderLayer, Conv2d):
    """An `nn.Conv2d` after `replace_convs`."""


class ReplacedConv3d(ReplacedWindowOrderLayer, Conv3d):
    """An `nn.Conv3d` after `replace_convs`."""


_REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: ReplacedConv1d,
    nn.Conv2d: ReplacedConv2d,
    nn.Conv3d: ReplacedConv3d,
}


def replace_convs(
    model: nn.Module,
    *,
    policy: str = "auto",
    fold: bool = False,
    exact: bool = True,
    tune: bool = False,
    example: Any = None,
) -> ReplacementReport:
    """Let shorthaul compute the convolutions of `model`, in place.

    Args:
        model: The model; its parameters, hooks and `state_dict` stay as they are.
        policy: `"auto"` (default) measures each layer against ATen at its first call, once for
            inference and once for training, remembers the result for this processor, and keeps ATen
            where it is faster; `"always"` measures nothing.
        fold: Fold batch norm and activation modules into the convolution before them for as long as
            they are in eval mode (default False).
        exact: False allows arithmetic with a larger rounding error: Winograd (default True).
        tune: Measure the schedules of each layer at its first call of each size, before it is
            compared with ATen (default False).
        example: A tensor, or a tuple of arguments: the model runs on it once in eval mode, so that
            everything is decided before this returns. None by default.
    """
    if policy not in POLICIES:
        raise ConvolutionError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}.")
    run_example = None if example is None else functools.partial(_run_example, model, example)
    folds = find_folds(model, run_example) if fold else {}
    modules = dict(model.named_modules(remove_duplicate=False))
    report = ReplacementReport(model, [], {}, [])
    for name, module in model.named_modules():
        reason = _reason_to_leave(module)
        if reason is not None:
            report.left_alone[name] = reason
        elif type(module) in _REPLACEMENTS:
            layer = ReplacedLayer(name, policy)
            if name in folds:
                norm, activation = (None if each is None else modules[each] for each in folds[name])
                layer.fold = Fold(norm, activation)
                layer.note = _describe_fold(*folds[name])
                for each in (norm, activation):
                    if each is not None:
                        fold_away(each, layer.fold)
            waits = policy == "always"
            attributes = {"replacement": layer, "exact": exact, "tune": tune, "wait": waits}
            report._swaps.append(swap_class(module, _REPLACEMENTS[type(module)], attributes))
            report.layers.append(layer)
    if run_example is not None:
        run_example()
    return report


def _reason_to_leave(module: nn.Module) -> str | None:
    kind = type(module)
    if kind in _REPLACEMENTS:
        return None
    if isinstance(module, WindowOrderLayer):
        return "is shorthaul's already"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return f"{kind.__name__} is a subclass, which may compute something else"
    if isinstance(module, _TRANSPOSED):
        return "transposed convolutions stay with ATen; `sh.conv_transpose2d` computes them"
    return None


def _describe_fold(norm: str | None, activation: str | None) -> str:
    parts = [f"batch norm {norm}"] if norm else []
    parts += [f"activation {activation}"] if activation else []
    return f"{' and '.join(parts)} folded in eval mode"


def _run_example(model: nn.Module, example: Any) -> None:
    modes = {each: each.training for each in model.modules()}
    arguments: Sequence[Any] = example if isinstance(example, tuple) else (example,)
    try:
        with torch.no_grad():
            step = functools.partial(model.eval(), *arguments)
            with progress_on_terminal() as show:
                run_compiled(step, functools.partial(show, "compiling"))
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def _run_aten(
    layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    plain: Any = next(each for each in _REPLACEMENTS if isinstance(layer, each))
    output: Tensor = plain._conv_forward(layer, input, weight, bias)
    return apply_activation(output, activation, is_own=True)


def _round_up(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()


def _measure(
    layer: Any, tensors: list[Tensor], activation: str | None, needs: Needs, key: str
) -> Choice:
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
    with warnings.catch_warnings(), torch.enable_grad(), compiling("wait"):
        warnings.simplefilter("ignore")  # ATen's, on copies for "same" padding
        return autotune(
            key,
            [Candidate(_OURS, lambda: run(ours)), Candidate(_ATEN, lambda: run(aten))],
        )
