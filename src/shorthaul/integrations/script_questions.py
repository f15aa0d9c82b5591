"""What `shorthaul advise` and `shorthaul fit` ask of a script: its model, a batch, its loss and its optimizer.

The script runs until its model is called in training after a backward pass: by then it is known how the
loss comes from the model's output, and in most scripts the optimizer has stepped. The question is answered with
what that call was given, and the script ends there.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import weakref
from typing import Any

import torch
from torch import nn

from shorthaul.advice import Fit, advise, fit
from shorthaul.advice.watching.followed_loss import FollowedLoss, LossFollower
from shorthaul.advice.watching.measurement import Loss
from shorthaul.errors import PlanError, ShorthaulError
from shorthaul.integrations.run import RunWishes

# Calls in training after which the question is answered, whether or not `backward` was seen.
_MOST_CALLS = 4


class ScriptQuestion:
    """A question to the first model that the script trains, from its first call to the answer."""

    def __init__(self, wishes: RunWishes) -> None:
        self.wishes = wishes
        self.loss: Loss = None  # None for the output's own
        self._is_loss_known = False
        self._model: weakref.ref[nn.Module] | None = None
        self._calls = 0
        self._follower: LossFollower | None = None
        self._has_own_loss = False

    def is_ripe(self, module: nn.Module) -> bool:
        """Whether this call, in training, is the one to answer with."""
        if self._model is None:
            self._model = weakref.ref(module)
        if self._model() is not module:
            return False
        self._calls += 1
        return self._is_loss_known or self._calls >= _MOST_CALLS

    def note_output(self, module: nn.Module, output: Any) -> None:
        """A call in training is over: what follows may be on the way to the loss."""
        is_asked = self._model is not None and self._model() is module
        if is_asked and not self._is_loss_known:
            if self._follower is not None:
                if self._calls <= _MOST_CALLS // 2:
                    return  # as of a loss that compares two outputs
                self.stop()
            self._follower = LossFollower(output).follow()
            self._has_own_loss = isinstance(getattr(output, "loss", None), torch.Tensor)

    def note_backward(self, loss: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """`backward` is about to be called on `loss`."""
        if self._follower is None:
            return
        found = self._follower.find(loss, gradient)
        if found is None:  # of another model
            return
        self._is_loss_known = True
        # What the model's own loss is multiplied by takes neither memory nor time.
        self.loss = None if self._has_own_loss and found.is_scaling else found
        self.stop()

    def stop(self) -> None:
        """Follow nothing any more."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()

    def answer(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        optimizers: list[torch.optim.Optimizer],
    ) -> int:
        """Print the answer on standard output, or why there is none on standard error; the exit code."""
        self.stop()
        try:
            self._print_answer(module, _batch_of(module, args, kwargs), optimizers)
        except ShorthaulError as error:
            print(f"shorthaul {self.wishes.question}: {error}", file=sys.stderr, flush=True)
            return 1
        except Exception:  # the model's own, or a defect
            traceback.print_exc()
            return 1
        return 0

    def _print_answer(
        self, module: nn.Module, batch: Any, optimizers: list[torch.optim.Optimizer]
    ) -> None:
        wishes = self.wishes
        shared: dict[str, Any] = {
            "loss": self.loss,
            "optimizer": optimizers,
            "directory": wishes.directory,
        }
        print(self._describe_step(optimizers), flush=True)
        found: Any
        if wishes.question == "fit":
            if wishes.memory_bytes is None:
                raise PlanError("`fit` needs the memory that the process may have.")
            if self.loss is not None:
                shared["micro_batches"] = (1,)  # labels and sizes in it are those of a whole batch
            found = fit(module, batch, memory=wishes.memory_bytes, **shared)
            if not isinstance(found, Fit):
                raise TypeError("a fit that is not dry is a Fit")
        else:
            found = advise(module, batch, trials=wishes.has_trials, **shared)
        print(found.describe(), flush=True)
        if wishes.report is not None:
            found.save(wishes.report)

    def _describe_step(self, optimizers: list[torch.optim.Optimizer]) -> str:
        """What the answer is for, so that nobody takes it for another step's."""
        if not self._is_loss_known:
            loss = "the sum of the output, as the script's loss could not be followed"
        elif isinstance(self.loss, FollowedLoss):
            loss = f"the script's own, {len(self.loss.calls):,} operations after the model"
        else:
            loss = "the model's own"
        names = ", ".join(type(each).__name__ for each in optimizers) or "none was found"
        return f"measured with this loss: {loss}; optimizer: {names}"


def _batch_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs:
        return args
    if not args:
        return kwargs
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    named = dict(bound.arguments)
    for name, each in bound.signature.parameters.items():
        if each.kind is each.VAR_POSITIONAL and named.pop(name, ()):
            raise PlanError(
                f"{type(module).__name__} was called with further positional arguments beside named "
                "ones; call `sh.advise(model, batch)` in the script instead."
            )
        if each.kind is each.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
