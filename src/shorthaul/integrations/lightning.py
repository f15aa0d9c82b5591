"""Lightning's `Trainer`: activations leave memory while it fits, by one line.

trainer = Trainer(callbacks=[LightningCallback(memory="8GiB")])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shorthaul.errors import MissingExtraError
from shorthaul.integrations.offloaded_training import OffloadedTraining


def _find_callback_classes() -> tuple[type, ...]:
    """The class of each name that Lightning is installed under: a trainer takes only its own."""
    classes = []
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            classes.append(importlib.import_module(name).Callback)
        except ImportError:
            continue
    if not classes:
        raise MissingExtraError("lightning", "lightning", "LightningCallback")
    return tuple(dict.fromkeys(classes))


if TYPE_CHECKING:
    _Callback = object
else:
    _Callback = type("_Callback", _find_callback_classes(), {})


class LightningCallback(OffloadedTraining, _Callback):
    """Offloads what autograd saves in each training step of a Lightning `Trainer`; gradients are bit-equal.

    The module is not touched: it is the strategy's `training_step` that is run inside of the context.
    What was kept, written and waited for is logged by the module, so it goes to the trainer's loggers.

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

    _strategy: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the context, and run the strategy's training steps inside of it.

        Args:
            trainer: Lightning's trainer.
            pl_module: The module in training.
        """
        self.begin_training(pl_module, trainer.optimizers)
        strategy = self._strategy = trainer.strategy
        step, backward = strategy.training_step, strategy.backward

        def training_step(*args: Any, **kwargs: Any) -> Any:
            return self.run_step(step, *args, **kwargs)

        def explained_backward(*args: Any, **kwargs: Any) -> Any:
            with self.ending_on_error():
                return backward(*args, **kwargs)

        strategy.training_step, strategy.backward = training_step, explained_backward

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what offloading did so far.

        Args:
            trainer: Lightning's trainer.
            pl_module: The module in training, which logs.
            outputs, batch, batch_idx: Not used.
        """
        del trainer, outputs, batch, batch_idx
        pl_module.log_dict(self.metrics(), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the context, and say in one line what it did.

        Args:
            trainer, pl_module: Not used.
        """
        del trainer, pl_module
        self.end_training()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the context: the training is over.

        Args:
            trainer, pl_module, exception: Not used.
        """
        del trainer, pl_module, exception
        self.end_training()

    def end_training(self) -> None:
        """Close the context, and give the strategy its own methods back."""
        strategy, self._strategy = self._strategy, None
        if strategy is not None:
            for name in ("training_step", "backward"):
                strategy.__dict__.pop(name, None)
        super().end_training()
