"""The models and steps of an unedited script, found as they are called.

A call of a module that is not inside another module's is an outermost one. At the first such call, in
training or not, layers are changed as was asked for; every one in training runs inside of the context
that offloads.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from shorthaul.advice.holding.repeated_blocks import RepeatedBlocks
from shorthaul.advice.watching.memory_shares import MemoryShares, measure_shares
from shorthaul.allocator.freed_memory import freed_memory
from shorthaul.errors import ShorthaulError
from shorthaul.integrations.run import RunWishes
from shorthaul.integrations.script_timeline import ScriptTimeline
from shorthaul.integrations.step_reports import StepReports
from shorthaul.offload import ActivationOffload, offload_activations

if TYPE_CHECKING:  # only where they are asked for
    from shorthaul.conv import ReplacedLayer, ReplacementReport
    from shorthaul.integrations.script_questions import ScriptQuestion
    from shorthaul.relational.interop.accelerate import AccelerationReport

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_GRAPH_PACKAGES = ("torch_geometric", "dgl")


@dataclass
class SeenModel:
    """An outermost module that was trained or changed: what was changed, what was left and why."""

    name: str
    parameters: int
    is_trained: bool = False
    convolutions: int = 0
    graph_layers: int = 0  # of PyG and DGL
    changed: dict[str, str] = field(default_factory=dict)  # layer -> what it is now
    left: dict[str, str] = field(default_factory=dict)  # layer -> why

    @classmethod
    def look_at(cls, module: nn.Module) -> SeenModel:
        """What there is to be known of a module before anything is changed."""
        kinds = [type(each) for each in module.modules()]
        places = [each.__module__.split(".") for each in kinds]
        return cls(
            type(module).__name__,
            sum(each.numel() for each in module.parameters()),
            convolutions=sum(issubclass(each, _CONVOLUTIONS) for each in kinds),
            graph_layers=sum(each[0] in _GRAPH_PACKAGES and "conv" in each for each in places),
        )


@dataclass
class _Known:
    """A module that was called, and what is told of it."""

    module: weakref.ref[nn.Module]
    seen: SeenModel
    is_told: bool = False
    blocks: RepeatedBlocks | None = None  # where some may be computed again


class _Inside(threading.local):
    """Whether a thread is inside of an outermost module's call, or of a backward pass."""

    def __init__(self) -> None:
        self.is_inside = False
        self.is_backward = False


def _is_in_backward() -> bool:
    """Whether this thread runs a backward pass, in which blocks that are computed again are no models of their own."""
    return bool(torch._C._current_graph_task_id() != -1)


class ScriptModels:
    """Everything that is known of the script's models, and the context around their calls."""

    def __init__(self, wishes: RunWishes) -> None:
        self.wishes = wishes
        self.seen: list[SeenModel] = []
        self.backward_passes = 0
        has_report = wishes.report is not None and wishes.question is None
        self.timeline = ScriptTimeline() if has_report else None
        self.step_reports = StepReports.make(wishes.steps_path if has_report else None, None)
        self._steps = 0
        self.question: ScriptQuestion | None = None
        if wishes.question is not None:
            from shorthaul.integrations.script_questions import ScriptQuestion

            self.question = ScriptQuestion(wishes)
        self.is_answered = False  # the question, where one was asked
        self.offload: ActivationOffload | None = None
        self.shares: MemoryShares | None = None
        self._inside = _Inside()
        self._known: dict[int, _Known] = {}
        self._replaced: list[tuple[SeenModel, ReplacementReport]] = []
        self._accelerated: list[tuple[SeenModel, AccelerationReport]] = []
        self._undo: list[Any] = []

    def install(self) -> None:
        """Watch calls of modules and backward passes, in this process and in no fork of it."""
        if self.wishes.offloads:
            freed_memory.settle()  # before the script makes its first tensor
        call: Any = nn.Module.__call__
        backward: Any = torch.Tensor.backward

        @functools.wraps(call)
        def watched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._inside.is_inside or _is_in_backward():
                return call(module, *args, **kwargs)
            return self._call_outermost(call, module, args, kwargs)

        @functools.wraps(backward)
        def watched_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._inside.is_backward:  # called again by PyTorch, for a mode that is on
                return backward(tensor, *args, **kwargs)
            self.backward_passes += 1
            if self.question is not None:
                self.question.note_backward(tensor, args[0] if args else kwargs.get("gradient"))
            self._inside.is_backward = True
            try:
                with self._explaining():
                    return backward(tensor, *args, **kwargs)
            finally:
                self._inside.is_backward = False
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
        """Note what is decided when layers are called: how each is computed, and which are swapped late."""
        for seen, replaced in self._replaced:
            for each in replaced.layers:
                verb, what = _describe_choice(each)
                (seen.changed if verb == "changed" else seen.left)[each.name] = what
        for known in self._known.values():
            if known.blocks is not None:
                known.seen.left |= {
                    name: f"not computed again: {why}"
                    for name, why in known.blocks.note_left().items()
                }
        for seen, accelerated in self._accelerated:
            seen.changed |= {
                each.name: f"{each.was}, now {each.now}" for each in accelerated.swapped
            }
            seen.left |= accelerated.left | accelerated.waiting

    def _call_outermost(
        self, call: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._inside.is_inside = True
        try:
            known = self._find_known(module)
            if known is None:
                if any(is_lazy(each) for each in module.parameters()):
                    return call(module, *args, **kwargs)  # which makes it known how large they are
                known = self._meet(module)
            if not (getattr(module, "training", False) and torch.is_grad_enabled()):
                return call(module, *args, **kwargs)
            # A loss, or a part that is not trained, is no model.
            is_trained = self._is_trained(module)
            if is_trained:
                self._begin_step(known, module, args, kwargs)
            if self.question is not None and is_trained:
                output = call(module, *args, **kwargs)
                self.question.note_output(module, output)
                return output
            if self.offload is None:
                return call(module, *args, **kwargs)
            with self._explaining(), _marked(known.blocks), self.offload:
                return call(module, *args, **kwargs)
        finally:
            self._inside.is_inside = False

    def _begin_step(
        self, known: _Known, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not known.seen.is_trained:
            known.seen.is_trained = True
            self._tell(known)
            if self.wishes.offloads and self.offload is None:
                self._open_offload(module)
            if self.shares is not None and self.wishes.recomputes:
                known.blocks = RepeatedBlocks(module)
        if self.question is not None and self.question.is_ripe(module):
            self._answer(self.question, module, args, kwargs)
        if self.timeline is not None:
            self.timeline.begin_step(module)
        self._steps += 1
        if self.step_reports is not None and self.step_reports.is_due(self._steps):
            self._report_step(self.step_reports)

    def _report_step(self, reports: StepReports) -> None:
        """A line now: a process that is killed writes no report at its end."""
        try:
            reports.write(self._steps, {} if self.offload is None else self.offload.metrics())
        except OSError as error:  # the script's work goes on
            self.step_reports = None
            print(f"shorthaul run: no more steps are reported: {error}", file=sys.stderr)

    def _is_trained(self, module: nn.Module) -> bool:
        return any(each.requires_grad for each in module.parameters())

    def _answer(
        self,
        question: ScriptQuestion,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.is_answered = True
        self.uninstall()  # the steps that follow are ours
        code = question.answer(module, args, kwargs, find_optimizers(module))
        # Scripts go on after exceptions that they know nothing of, so none of ours gets there.
        raise SystemExit(code)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        with contextlib.nullcontext() if self.shares is None else self.shares.explaining():
            yield

    def _find_known(self, module: nn.Module) -> _Known | None:
        known = self._known.get(id(module))
        return known if known is not None and known.module() is module else None

    def _tell(self, known: _Known) -> None:
        if not known.is_told:
            known.is_told = True
            self.seen.append(known.seen)

    def _meet(self, module: nn.Module) -> _Known:
        """Change layers as was asked for, before the first call of an outermost module."""
        known = self._known[id(module)] = _Known(weakref.ref(module), SeenModel.look_at(module))
        seen = known.seen
        if not any(True for _ in module.parameters()):
            return known  # a loss
        if self.wishes.replaces_convs:
            replaced = _replace_convs(module, seen)
            if replaced is not None:
                self._replaced.append((seen, replaced))
        if self.wishes.accelerates:
            accelerated = _accelerate(module, seen)
            if accelerated is not None:
                self._accelerated.append((seen, accelerated))
        if self.wishes.replaces_convs or self.wishes.accelerates:
            self._tell(known)
        return known

    def _open_offload(self, module: nn.Module) -> None:
        budget_bytes = None
        if self.wishes.memory_bytes is not None:
            # Of all models: another one that is trained beside this one needs its share, too.
            self.shares = measure_shares(module, find_optimizers(), self.wishes.memory_bytes)
            budget_bytes = self.shares.require_budget()
        self.offload = offload_activations(self.wishes.directory, budget=budget_bytes)


def _marked(blocks: RepeatedBlocks | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if blocks is None else blocks.marked()


def find_optimizers(module: nn.Module | None = None) -> list[torch.optim.Optimizer]:
    """The optimizers that train parameters of a module, or of any; nobody else knows of both."""
    made = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
    # One that wraps another, as accelerate's does, shows the same groups.
    inmost = {id(each): each for each in (getattr(one, "optimizer", one) for one in made)}
    if module is None:
        return list(inmost.values())
    own = {id(each) for each in module.parameters()}
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


def _describe_choice(layer: ReplacedLayer) -> tuple[str, str]:
    """Whether a replaced layer was changed or left, and what is said of it."""
    if layer.problem is None:
        return "left", "was not called"
    if layer.choices and not (layer.is_ours("inference") or layer.is_ours("training")):
        return "left", "PyTorch's own convolution was measured to be faster"
    if not layer.choices and layer.policy == "auto":
        return "left", "its kernels were not compiled before the end; PyTorch's own ran"
    return "changed", f"convolution, {layer.describe_choice()[0]}"


def _accelerate(module: nn.Module, seen: SeenModel) -> AccelerationReport | None:
    from shorthaul.relational import accelerate

    try:
        return accelerate(module)
    except ShorthaulError as error:
        seen.left["graph layers"] = str(error)
        return None
