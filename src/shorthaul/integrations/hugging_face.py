"""Hugging Face's `Trainer`: activations leave memory while it trains, by one line.

trainer = Trainer(model, args, train_dataset=data, callbacks=[ShorthaulCallback(memory="8GiB")])
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from shorthaul.errors import MissingExtraError, PlanError
from shorthaul.integrations.memory_shares import MemoryShares, measure_shares
from shorthaul.offload import ActivationOffload, OffloadReport, offload_activations
from shorthaul.units import format_bytes, format_seconds, parse_bytes

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtraError("transformers", "hf", "ShorthaulCallback") from error

_log = logging.getLogger("shorthaul")


class ShorthaulCallback(TrainerCallback):
    """Offloads what autograd saves in each training step of a `Trainer`; gradients are bit-equal.

    The model is not touched: it is the training step that is run inside of the context. What was kept,
    written and waited for goes into the trainer's logs.

    Args:
        memory: What the whole process may have, such as `"8GiB"`: parameters, gradients, optimizer
            states and what is resident when training begins are taken off, the rest is the budget
            of live activations. None (default), without a `budget`, lets everything leave memory.
        directory: A directory on a disk; None (default) takes the scratch setting.
        knobs: Further arguments of `sh.offload_activations`.
    """

    def __init__(
        self,
        memory: int | str | None = None,
        directory: str | os.PathLike[str] | None = None,
        **knobs: Any,
    ) -> None:
        if memory is not None and knobs.get("budget") is not None:
            raise PlanError(
                "`memory` makes the budget: give one of `memory` and `budget`, not both."
            )
        self.memory_bytes = None if memory is None else parse_bytes(memory)
        self.directory, self.knobs = directory, knobs
        self.offload: ActivationOffload | None = None
        self.shares: MemoryShares | None = None
        self.steps = 0  # training steps, each of one batch
        self._trainer: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Open the context, and run the trainer's steps inside of it.

        Args:
            args, state, control: As every `TrainerCallback` gets them.
            model: The model in training (default None).
            others: Not used.
        """
        del args, state, control
        self._end()  # of a training that was broken off outside of a step
        trainer = self._find_trainer()
        handler = trainer.callback_handler
        # Before those that report to loggers, so that what is added to the logs is reported, too.
        handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]
        knobs = dict(self.knobs)
        if self.memory_bytes is not None:
            optimizer = others.get("optimizer")
            optimizers = [] if optimizer is None else [optimizer]
            self.shares = measure_shares(model, optimizers, self.memory_bytes)
            knobs["budget"] = self.shares.require_budget()
        self.offload = offload_activations(self.directory, **knobs)
        self.steps = 0
        self._trainer, step = trainer, trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            return self._run(step, args, kwargs)

        trainer.training_step = training_step

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Close the context, and say in one line what it did.

        Args:
            args, state, control: As every `TrainerCallback` gets them.
            others: Not used.
        """
        del args, state, control, others
        self._end()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Add what offloading did so far to what the trainer logs of training.

        Args:
            args, state, control: As every `TrainerCallback` gets them.
            logs: What the trainer logs; it is added to (default None).
            others: Not used.
        """
        del args, control, others
        if self.offload is None or logs is None or not {"loss", "train_loss"} & logs.keys():
            return
        metrics = metrics_of(self.offload.report())
        logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)  # a copy of the logs, made before this call

    def _run(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.offload is None:
            return step(*args, **kwargs)
        self.steps += 1
        try:
            if self.shares is None:
                with self.offload:
                    return step(*args, **kwargs)
            with self.shares.explaining(), self.offload:
                return step(*args, **kwargs)
        except BaseException:
            self._end()  # a trainer that fails tells no callback
            raise

    def _end(self) -> None:
        offload, self.offload = self.offload, None
        if offload is None:
            return
        # The trainer's own method is found again on its class.
        self._trainer.__dict__.pop("training_step", None)
        self._trainer = None
        report = offload.report()
        offload.close()
        if self.steps:
            _log.info("%s", summarize(report, self.steps))
        else:
            _log.warning("nothing was offloaded: the trainer never called its training_step")

    def _find_trainer(self) -> Any:
        """The trainer that is calling: events are not told of it."""
        for caller in _callers():
            handler = getattr(caller, "callback_handler", None)
            if handler is None or not hasattr(caller, "training_step"):
                continue
            if any(each is self for each in handler.callbacks):
                return caller
        raise PlanError(
            "ShorthaulCallback was not called by a Trainer that has it among its callbacks; in a "
            "loop of your own, use `with sh.offload_activations(...):`."
        )


def metrics_of(report: OffloadReport) -> dict[str, float]:
    """What goes into logs: since training began, under names that every logger takes."""
    counts = report.counts
    return {
        "shorthaul_live_bytes": report.live_bytes,
        "shorthaul_peak_live_bytes": counts.peak_live_bytes,
        "shorthaul_written_bytes": counts.written_bytes,
        "shorthaul_read_bytes": counts.read_bytes,
        "shorthaul_stall_seconds": counts.stall_seconds,
    }


def summarize(report: OffloadReport, steps: int) -> str:
    """One line for the log."""
    counts = report.counts
    return (
        f"offloaded activations in {steps:,} training steps: at most "
        f"{format_bytes(counts.peak_live_bytes)} live instead of "
        f"{format_bytes(counts.peak_saved_bytes)}, {format_bytes(counts.written_bytes)} written, "
        f"{format_bytes(counts.read_bytes)} read, {format_seconds(counts.stall_seconds)} waited"
    )


def _callers() -> Iterator[Any]:
    """The objects whose methods are running now, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]
