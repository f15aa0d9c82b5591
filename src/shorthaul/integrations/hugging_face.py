"""Hugging Face's `Trainer`: activations leave memory while it trains, by one line.

trainer = Trainer(model, args, train_dataset=data, callbacks=[ShorthaulCallback(memory="8GiB")])
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from shorthaul.errors import MissingExtraError, PlanError
from shorthaul.integrations.offloaded_training import OffloadedTraining

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtraError("transformers", "hf", "ShorthaulCallback") from error


class ShorthaulCallback(OffloadedTraining, TrainerCallback):
    """Offloads what autograd saves in each training step of a `Trainer`; gradients are bit-equal.

    The model is not touched: it is the training step that is run inside of the context. What was kept,
    written and waited for goes into the trainer's logs.

    Args:
        memory: What the whole process may have, such as `"8GiB"`: parameters, gradients, optimizer
            states and what is resident when training begins are taken off, the rest is the budget
            of live activations. None (default), without a `budget`, lets everything leave memory.
        directory: A directory on a disk; None (default) takes the scratch setting.
        report: A file to which a line of JSON is added now and then; None (default) for none.
        report_every: After how many steps; None (default) for 100.
        recompute: With `memory`, whether blocks that the model repeats may be computed again where
            the plan finds that faster, and where that cannot change a gradient (default True).
        knobs: Further arguments of `sh.offload_activations`.
    """

    _trainer: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Open the context, and run the trainer's steps inside of it.

        Args:
            args, state, control: As every `TrainerCallback` gets them.
            model: The model in training (default None).
            others: The optimizer, among what is not used.
        """
        del args, state, control
        self.end_training()  # of one that was broken off outside of a step
        trainer = self._find_trainer()
        handler = trainer.callback_handler
        # Before those that report to loggers, so that what is added to the logs is reported, too.
        handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]
        optimizer = others.get("optimizer")
        self.begin_training(model, [] if optimizer is None else [optimizer])
        self._trainer, step = trainer, trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            return self.run_step(step, *args, **kwargs)

        trainer.training_step = training_step

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Close the context, and say in one line what it did.

        Args:
            args, state, control: As every `TrainerCallback` gets them.
            others: Not used.
        """
        del args, state, control, others
        self.end_training()

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
        if logs is None or not {"loss", "train_loss"} & logs.keys():
            return
        metrics = self.metrics()
        logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)  # a copy of the logs, made before this call

    def end_training(self) -> None:
        """Close the context, and give the trainer its own step back."""
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            # The trainer's own method is found again on its class.
            trainer.__dict__.pop("training_step", None)
        super().end_training()

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


def _callers() -> Iterator[Any]:
    """The objects whose methods are running now, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]
