"""Accelerate: the models that `Accelerator.prepare` returns offload their activations, by one line.

offload = offload_prepared(accelerator, memory="8GiB")
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from shorthaul.integrations.offloaded_training import OffloadedTraining
from shorthaul.offload import OffloadReport, enter_at_calls

_METHODS = ("prepare", "backward", "log", "free_memory", "end_training")


def offload_prepared(
    accelerator: Any,
    memory: int | str | None = None,
    directory: str | os.PathLike[str] | None = None,
    *,
    report: str | os.PathLike[str] | None = None,
    report_every: int | None = None,
    **knobs: Any,
) -> PreparedOffload:
    """Offload what the models save that `accelerator.prepare` returns from now on.

    `accelerator.log` also logs what was kept, written and waited for. It ends with
    `accelerator.end_training()` or `free_memory()`, or by `remove()`.

    Args:
        accelerator: An `accelerate.Accelerator`.
        memory: What the whole process may have, such as `"8GiB"`: parameters, gradients, optimizer
            states and what is resident at the first call in training are taken off, the rest is the
            budget of live activations. None (default), without a `budget`, lets everything leave.
        directory: A directory on a disk; None (default) takes the scratch setting.
        report: A file to which a line of JSON is added now and then; None (default) for none.
        report_every: After how many steps; None (default) for 100.
        knobs: `recompute=False` to have nothing computed again, and further arguments of
            `sh.offload_activations`.
    """
    told = {"report": report, "report_every": report_every}
    prepared = PreparedOffload(accelerator, memory, directory, **told, **knobs)
    prepared.watch()
    return prepared


class PreparedOffload(OffloadedTraining):
    """Offloading in the models of an `Accelerator`, and the context that their calls enter.

    Made by `offload_prepared`.
    """

    def __init__(self, accelerator: Any, memory: Any, directory: Any, **knobs: Any) -> None:
        super().__init__(memory, directory, **knobs)
        self._accelerator = accelerator
        self._models = torch.nn.ModuleList()
        self._optimizers: list[Any] = []
        self._undo: list[Callable[[], None]] = []
        self._entered: list[contextlib.ExitStack] = []
        self._ours: dict[str, Callable[..., Any]] = {}
        self._before: dict[str, Any] = {}  # what the accelerator itself had under these names

    def watch(self) -> None:
        """Put our methods before the accelerator's own."""
        own = self._accelerator
        prepare, backward, log = own.prepare, own.backward, own.log
        free_memory, end_training = own.free_memory, own.end_training

        def prepare_and_watch(*objects: Any, **kwargs: Any) -> Any:
            prepared = prepare(*objects, **kwargs)
            if self._ours:  # another one, made later, calls us also after our end
                for each in prepared if isinstance(prepared, tuple) else (prepared,):
                    self._note(each)
            return prepared

        def explained_backward(*args: Any, **kwargs: Any) -> Any:
            with self.ending_on_error():
                return backward(*args, **kwargs)

        def log_with_metrics(values: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            return log({**values, **self.metrics()}, *args, **kwargs)

        def end_and_free_memory(*objects: Any) -> Any:
            self.remove()
            return free_memory(*objects)

        def end_both() -> None:
            self.remove()
            end_training()

        replaced: tuple[Callable[..., Any], ...] = (
            prepare_and_watch,
            explained_backward,
            log_with_metrics,
            end_and_free_memory,
            end_both,
        )
        self._ours = dict(zip(_METHODS, replaced, strict=True))
        self._before = {name: vars(own)[name] for name in _METHODS if name in vars(own)}
        vars(own).update(self._ours)

    def report(self) -> OffloadReport | None:
        """What was done so far; None before the first call in training and after the end."""
        return None if self.offload is None else self.offload.report()

    def remove(self) -> None:
        """Close the context, and leave models and accelerator as they were before this one."""
        self.end_training()
        while self._undo:
            self._undo.pop()()
        own = vars(self._accelerator)
        ours, self._ours = self._ours, {}
        for name, method in ours.items():
            if own.get(name) is not method:
                continue  # somebody put theirs around ours
            if name in self._before:
                own[name] = self._before[name]
            else:
                del own[name]  # found again on its class
        self._models, self._optimizers = torch.nn.ModuleList(), []

    def _note(self, prepared: Any) -> None:
        if isinstance(prepared, torch.optim.Optimizer):
            self._optimizers.append(prepared)
        elif isinstance(prepared, torch.nn.Module):
            self._models.append(prepared)
            self._undo.append(enter_at_calls(prepared, self))

    def __enter__(self) -> PreparedOffload:
        if self.offload is None and torch.is_grad_enabled():
            self.begin_training(self._models, self._optimizers)
        entered = contextlib.ExitStack()
        if self.offload is not None and torch.is_grad_enabled():
            entered.enter_context(self.marked_blocks())
            entered.enter_context(self.offload)
            entered.callback(self.note_step)
        self._entered.append(entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entered:
            self._entered.pop().__exit__(kind, error, trace)
