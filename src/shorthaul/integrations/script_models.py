"""The models and steps of an unedited script, found as they are called.

A call of a module that is not inside another module's is an outermost one. At the first such call in
training, what was asked for is applied; every one of them runs inside of the context that offloads.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from shorthaul.advice.watching.memory_shares import MemoryShares, measure_shares
from shorthaul.errors import ShorthaulError
from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_timeline import ScriptTimeline
from shorthaul.offload import ActivationOffload, offload_activations

if TYPE_CHECKING:  # only where convolutions are asked for
    from shorthaul.conv.models.replace import ReplacementReport


@dataclass
class SeenModel:
    """An outermost module that was trained: what was changed in it, what was left and why."""

    name: str
    parameters: int
    changed: dict[str, str] = field(default_factory=dict)  # layer -> what it is now
    left: dict[str, str] = field(default_factory=dict)  # layer -> why


class _Inside(threading.local):
    """Whether a thread is inside of an outermost module's call."""

    def __init__(self) -> None:
        self.is_inside = False


class ScriptModels:
    """Everything that is known of the script's models, and the context around their calls."""

    def __init__(self, wishes: RunWishes) -> None:
        self.wishes = wishes
        self.seen: list[SeenModel] = []
        self.backward_passes = 0
        self.timeline = None if wishes.report is None else ScriptTimeline()
        self.is_answered = False  # the question, where one was asked
        self.offload: ActivationOffload | None = None
        self.shares: MemoryShares | None = None
        self._inside = _Inside()
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._replaced: list[tuple[SeenModel, ReplacementReport]] = []
        self._undo: list[Any] = []

    def install(self) -> None:
        """Watch calls of modules and backward passes, in this process and in no fork of it."""
        call: Any = nn.Module.__call__
        backward: Any = torch.Tensor.backward

        @functools.wraps(call)
        def watched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._inside.is_inside:
                return call(module, *args, **kwargs)
            return self._call_outermost(call, module, args, kwargs)

        @functools.wraps(backward)
        def watched_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.backward_passes += 1
            try:
                with self._explaining():
                    return backward(tensor, *args, **kwargs)
            finally:
                if self.timeline is not None:
                    self.timeline.end_backward()

        nn.Module.__call__ = watched_call  # type: ignore[method-assign]
        torch.Tensor.backward = watched_backward  # type: ignore[method-assign, assignment]

        def restore() -> None:
            # Unless somebody else put theirs around ours.
            if nn.Module.__call__ is watched_call:
                nn.Module.__call__ = call  # type: ignore[method-assign]
            if torch.Tensor.backward is watched_backward:
                torch.Tensor.backward = backward  # type: ignore[method-assign]

        self._undo.append(restore)
        os.register_at_fork(after_in_child=self.uninstall)

    def uninstall(self) -> None:
        """Watch nothing any more; what was changed in models stays."""
        while self._undo:
            self._undo.pop()()

    def note_choices(self) -> None:
        """Note how convolutions are computed: that is measured when they are called."""
        for seen, report in self._replaced:
            for each in report.layers:
                names = {choice.name for choice in each.choices.values()}
                if names == {"aten"}:
                    seen.left[each.name] = "PyTorch's own convolution was measured to be faster"
                elif names:
                    chosen, _ = each.describe_choice()
                    seen.changed[each.name] = f"convolution, {chosen}"
                else:
                    seen.left[each.name] = "was not called"

    def _call_outermost(
        self, call: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._inside.is_inside = True
        try:
            if not (getattr(module, "training", False) and torch.is_grad_enabled()):
                return call(module, *args, **kwargs)
            if not self._is_known(module):
                if any(is_lazy(each) for each in module.parameters()):
                    return call(module, *args, **kwargs)  # which makes it known how large they are
                self._apply(module)
            elif self.wishes.question is not None and self._is_trained(module):
                self._answer(module, args, kwargs)
            if self.timeline is not None and self._is_trained(module):
                self.timeline.begin_step(module)
            if self.offload is None:
                return call(module, *args, **kwargs)
            with self._explaining(), self.offload:
                return call(module, *args, **kwargs)
        finally:
            self._inside.is_inside = False

    def _is_trained(self, module: nn.Module) -> bool:
        return any(each.requires_grad for each in module.parameters())

    def _answer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from shorthaul.integrations.script_questions import answer

        self.is_answered = True
        self.uninstall()  # the steps that follow are ours
        answer(self.wishes, module, args, kwargs)
        raise SystemExit(0)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.shares is None else self.shares.explaining():
            yield

    def _is_known(self, module: nn.Module) -> bool:
        known = self._known.get(id(module))
        return known is not None and known() is module

    def _apply(self, module: nn.Module) -> None:
        """What was asked for, before the first training call of an outermost module."""
        self._known[id(module)] = weakref.ref(module)
        parameters = list(module.parameters())
        if not any(each.requires_grad for each in parameters):
            return  # a loss, or a part that is not trained
        seen = SeenModel(type(module).__name__, sum(each.numel() for each in parameters))
        self.seen.append(seen)
        if self.wishes.replaces_convs:
            report = _replace_convs(module, seen)
            if report is not None:
                self._replaced.append((seen, report))
        if self.wishes.accelerates:
            _accelerate(module, seen)
        if self.wishes.offloads and self.offload is None:
            self._open_offload(module)

    def _open_offload(self, module: nn.Module) -> None:
        budget_bytes = None
        if self.wishes.memory_bytes is not None:
            optimizers = find_optimizers(module)
            self.shares = measure_shares(module, optimizers, self.wishes.memory_bytes)
            budget_bytes = self.shares.require_budget()
        self.offload = offload_activations(self.wishes.directory, budget=budget_bytes)


def find_optimizers(module: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that train parameters of a module; nobody else knows of both."""
    own = {id(each) for each in module.parameters()}
    made = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
    # One that wraps another, as accelerate's does, shows the same groups.
    inmost = {id(each): each for each in (getattr(one, "optimizer", one) for one in made)}
    return [
        each
        for each in inmost.values()
        if any(id(one) in own for group in each.param_groups for one in group["params"])
    ]


def _replace_convs(module: nn.Module, seen: SeenModel) -> ReplacementReport | None:
    from shorthaul.conv import replace_convs

    try:
        report = replace_convs(module)
    except ShorthaulError as error:
        seen.left["convolutions"] = str(error)
        return None
    seen.left |= report.left_alone
    return report


def _accelerate(module: nn.Module, seen: SeenModel) -> None:
    from shorthaul.relational import accelerate

    try:
        report = accelerate(module)
    except ShorthaulError as error:
        seen.left["graph layers"] = str(error)
        return
    seen.changed |= {each.name: f"{each.was}, now {each.now}" for each in report.swapped}
    seen.left |= report.left
