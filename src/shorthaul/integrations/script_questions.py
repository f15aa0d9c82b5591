"""What `shorthaul advise` and `shorthaul fit` ask of a script: its model and a batch, then its end.

The script runs until the second training call of its model: by then its optimizer has stepped. The
question is answered with what that call was given, and the script ends there.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from typing import Any

from torch import nn

from shorthaul.advice import Fit, advise, fit
from shorthaul.errors import PlanError, ShorthaulError
from shorthaul.integrations.run import RunWishes


def answer(
    wishes: RunWishes, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """Print the answer on standard output, or why there is none on standard error; the exit code."""
    try:
        _print_answer(wishes, module, args, kwargs)
    except ShorthaulError as error:
        print(f"shorthaul {wishes.question}: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception:  # the model's own, or a defect
        traceback.print_exc()
        return 1
    return 0


def _print_answer(
    wishes: RunWishes, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    batch = _batch_of(module, args, kwargs)
    found: Any
    if wishes.question == "fit":
        if wishes.memory_bytes is None:
            raise PlanError("`fit` needs the memory that the process may have.")
        found = fit(module, batch, memory=wishes.memory_bytes, directory=wishes.directory)
        if not isinstance(found, Fit):
            raise TypeError("a fit that is not dry is a Fit")
    else:
        found = advise(module, batch, directory=wishes.directory, trials=wishes.has_trials)
    print(found.describe(), flush=True)
    if wishes.report is not None:
        found.save(wishes.report)


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
