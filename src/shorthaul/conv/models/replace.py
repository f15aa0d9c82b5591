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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor, nn

from shorthaul.conv.layer import Conv1d, Conv2d, Conv3d, WindowOrderLayer
from shorthaul.conv.models.fold import Fold, find_folds, fold_away, restore
from shorthaul.conv.models.replaced_layer import ReplacedLayer
from shorthaul.errors import ConvolutionError
from shorthaul.jit.compiling.loading import run_compiled
from shorthaul.jit.compiling.progress import progress_on_terminal
from shorthaul.module_swap import Swap, swap_class
from shorthaul.report_table import layer_table
from shorthaul.units import format_bytes

POLICIES = ("auto", "always")
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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
    plain: ClassVar[type[nn.Module]]  # PyTorch's own

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.replacement.run(self, input, weight, bias)

    def _get_name(self) -> str:
        return f"Conv{self.dimensions}d"


class ReplacedConv1d(ReplacedWindowOrderLayer, Conv1d):
    """An `nn.Conv1d` after `replace_convs`."""

    plain = nn.Conv1d


class ReplacedConv2d(ReplacedWindowOrderLayer, Conv2d):
    """An `nn.Conv2d` after `replace_convs`."""

    plain = nn.Conv2d


class ReplacedConv3d(ReplacedWindowOrderLayer, Conv3d):
    """An `nn.Conv3d` after `replace_convs`."""

    plain = nn.Conv3d


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
            inference and once for training and for sizes up to the same powers of two, remembers the
            result for this processor, and keeps ATen unless ours is clearly faster; `"always"`
            measures nothing.
        fold: Fold batch norm and activation modules into the convolution before them for as long as
            they are in eval mode (default False).
        exact: False allows arithmetic with a larger rounding error: Winograd (default True).
        tune: Measure the schedules of each layer at its first call of each size, before it is
            compared with ATen (default False).
        example: A tensor, a tuple of arguments, or a dictionary of arguments by name: the model runs on it once in eval mode, so that
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
    try:
        with torch.no_grad():
            step = functools.partial(call_with, model.eval(), example)
            with progress_on_terminal() as show:
                run_compiled(step, functools.partial(show, "compiling"))
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def split_example(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that an example stands for, and those by name.

    >>> split_example(("image", "mask")), split_example({"pixel_values": "image"})
    ((('image', 'mask'), {}), ((), {'pixel_values': 'image'}))

    Args:
        example: An argument, a tuple of arguments, or a dictionary of arguments by name.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return example if isinstance(example, tuple) else (example,), {}


def call_with(model: nn.Module, example: Any) -> Any:
    """What `model` returns for an example.

    Args:
        model: The model.
        example: As of `split_example`.
    """
    arguments, named = split_example(example)
    return model(*arguments, **named)
