"""The way from a model's output to the tensor that a script calls `backward` on, so that it can be taken again.

A script computes its loss in code of its own, which nobody can call. What it calls of PyTorch on the way is
noted with its other arguments, such as labels, and is called again on the output of another step.

>>> model, labels = torch.nn.Linear(4, 2), torch.tensor([0, 1, 1])
>>> output = model(torch.ones(3, 4))
>>> with LossFollower(output) as follower:
...     value = torch.nn.functional.cross_entropy(output, labels) / 2
>>> loss = follower.find(value)
>>> loss is not None and torch.equal(loss(model(torch.ones(3, 4))), value)
True
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class _Value:
    """Stands for a tensor that depends on the output."""

    number: int


@dataclass(frozen=True)
class _Call:
    """One function of PyTorch's that was called on the way."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]  # the number of each tensor of the result
    has_gradient: bool
    autocast: torch.dtype | None


@dataclass(frozen=True)
class FollowedLoss:
    """A script's own loss as a function of its model's output, for a batch of the same size.

    Args:
        sources: How many tensors the output has.
        calls: What was called on the way, in order.
        end: The number of the loss among the values.
        gradient: What `backward` was given; None for a scalar.
        device: The kind of device that it is computed on.
        is_scaling: Whether all that is done on the way is to change single numbers, as where the model
            computes the loss and the script divides it.
    """

    sources: int
    calls: tuple[_Call, ...]
    end: int
    gradient: torch.Tensor | None
    device: str
    is_scaling: bool

    def __call__(self, output: Any) -> torch.Tensor:
        """The loss of another output."""
        values = dict(enumerate(_tensors_of(output)))
        if len(values) != self.sources:
            raise ValueError(f"expected an output of {self.sources} tensors, got {len(values)}")

        def fill_in(each: Any) -> Any:
            return values[each.number] if isinstance(each, _Value) else each

        for call in self.calls:
            args, kwargs = pytree.tree_map(fill_in, (call.args, call.kwargs))
            with torch.set_grad_enabled(call.has_gradient), self._autocast(call.autocast):
                found = _tensors_of(call.function(*args, **kwargs))
            values.update(zip(call.results, found, strict=True))
        loss = values[self.end]
        return loss if self.gradient is None else (loss * self.gradient).sum()

    def _autocast(self, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype, enabled=dtype is not None)


class LossFollower(TorchFunctionMode):
    """Notes what is called on a model's output, from `follow` on, until `find` is asked.

    It may end while other modes are still on, as those of a script: then it looks on and notes nothing.
    """

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._sources = _tensors_of(output)
        self._roots = {each.grad_fn for each in self._sources if each.grad_fn is not None}
        self._numbers = {id(each): number for number, each in enumerate(self._sources)}
        self._held: list[Any] = list(self._sources)  # an address must not be given out again
        self._calls: list[_Call] = []
        self._is_on = True

    def follow(self) -> LossFollower:
        """Begin, without a block."""
        self.__enter__()  # type: ignore[no-untyped-call]
        return self

    def stop(self) -> None:
        """Note nothing more."""
        self._is_on = False
        self._held, self._numbers, self._calls = [], {}, []
        if _get_current_function_mode() is self:  # type: ignore[no-untyped-call]
            self.__exit__(None, None, None)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call it, and note it if it was given something that depends on the output."""
        kwargs = kwargs or {}
        if not self._is_on:
            return function(*args, **kwargs)
        noted = pytree.tree_map(self._stand_in, (args, kwargs))
        result = function(*args, **kwargs)
        if any(_is_followed(each) for each in pytree.tree_leaves(noted)):
            found = _tensors_of(result)
            if found or function is torch.Tensor.__setitem__:
                self._note(function, noted, found)
        return result

    def _stand_in(self, each: Any) -> Any:
        number = self._numbers.get(id(each)) if isinstance(each, torch.Tensor) else None
        return each if number is None else _Value(number)

    def _note(self, function: Any, noted: Any, found: list[torch.Tensor]) -> None:
        numbers = []
        for each in found:
            numbers.append(len(self._held))
            self._numbers[id(each)] = len(self._held)
            self._held.append(each)
        device = self._sources[0].device.type
        is_autocast = torch.is_autocast_enabled(device)
        self._calls.append(
            _Call(
                function,
                noted[0],
                noted[1],
                tuple(numbers),
                torch.is_grad_enabled(),
                torch.get_autocast_dtype(device) if is_autocast else None,
            )
        )

    def find(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> FollowedLoss | None:
        """The way to `loss`, asked before its backward pass; None where that is not known as a whole."""
        end = self._numbers.get(id(loss))
        if end is None or not self._leads_back(loss):
            return None
        # All of them: one whose result is not needed may have changed a tensor in place.
        calls = tuple(self._calls)
        is_scaling = gradient is None and loss.dim() == 0
        for call in calls:
            for each in pytree.tree_leaves((call.args, call.kwargs)):
                tensor = self._held[each.number] if isinstance(each, _Value) else each
                # Of another graph, such as a second call of the model, whose backward pass can be run once.
                if tensor is each and isinstance(each, torch.Tensor) and each.grad_fn is not None:
                    return None
                if isinstance(tensor, torch.Tensor) and tensor.dim():
                    is_scaling = False
        device = loss.device.type
        return FollowedLoss(len(self._sources), calls, end, gradient, device, is_scaling)

    def _leads_back(self, loss: torch.Tensor) -> bool:
        """Whether its gradient reaches the output."""
        seen: set[Any] = set()
        ahead = [loss.grad_fn]
        while ahead:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            if node in self._roots:
                return True
            seen.add(node)
            ahead += [each for each, _ in node.next_functions]
        return False


def _is_followed(each: Any) -> bool:
    # What is computed from parameters, such as a penalty on them, has a gradient of its own.
    return isinstance(each, _Value) or (isinstance(each, torch.Tensor) and each.requires_grad)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]
