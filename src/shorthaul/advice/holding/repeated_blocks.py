"""The blocks of a model as regions that the planner may have computed again, while a step runs and not longer.

Nobody asked for that block by block, so each is looked at: before, its code; in each step, whether it changes or
keeps something; and in the backward pass, whether its parameters are still what they were. What it was given is looked
at by autograd, which saves it. Between two steps the model is as it was, so that it can be copied and saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from shorthaul.advice.blocks import Blocks, find_blocks
from shorthaul.advice.holding.repeatable import why_not_repeatable
from shorthaul.advice.watching import observation
from shorthaul.errors import BlockChangedError
from shorthaul.offload import region

_PLAIN = (torch.Tensor, int, float, complex, str, bool, type(None), torch.dtype, torch.device)


class RepeatedBlocks:
    """Those blocks of a model that may be computed again, and why the others may not.

    >>> layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(3)]
    >>> blocks = RepeatedBlocks(torch.nn.Sequential(*layers, torch.nn.Linear(4, 1)))
    >>> blocks.names, blocks.left
    (('0', '1', '2'), {})
    """

    def __init__(self, model: torch.nn.Module) -> None:
        found = find_blocks(model)
        self.left: dict[str, str] = {}
        self._blocks: list[_Block] = []
        for name, module in _pairs(found):
            reason = why_not_repeatable(module)
            if reason is None:
                self._blocks.append(_Block(name, module))
            else:
                self.left[name] = reason

    @property
    def names(self) -> tuple[str, ...]:
        """What the model calls them."""
        return tuple(each.name for each in self._blocks)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Calls inside are regions of the offloading context that they are in."""
        marked = [each for each in self._blocks if each.mark()]
        try:
            yield
        finally:
            for each in marked:
                each.unmark()

    def note_left(self) -> dict[str, str]:
        """Why blocks were left alone, those included that turned out so in a step."""
        turned_out = {each.name: each.reason for each in self._blocks if each.reason is not None}
        return self.left | turned_out


def _pairs(found: Blocks | None) -> Iterator[tuple[str, torch.nn.Module]]:
    if found is not None:
        yield from zip(found.names, found.modules, strict=True)


class _Block:
    """A module whose `forward` is a region while it is marked."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name, self.module = name, module
        self.reason: str | None = None  # why it is left alone from now on

    def mark(self) -> bool:
        """Whether it is marked now, by this call."""
        if vars(self.module).get("forward") == self.call:  # inside of another call
            return False
        if self.reason is None:
            self.reason = _why_not_now(self.module)
        if self.reason is None:
            self.module.forward = self.call
        return self.reason is None

    def unmark(self) -> None:
        """The class's own `forward` is found again."""
        vars(self.module).pop("forward", None)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of `forward`."""
        forward = type(self.module).forward
        # Such as a cache, which would get what it gets twice.
        if self.reason is not None or not all(map(_is_plain, (args, kwargs))):
            return forward(self.module, *args, **kwargs)
        return region(_Call(self, forward))(*args, **kwargs)


class _Call:
    """One call of a block, and the same call once more in the backward pass."""

    __name__ = "block"

    def __init__(self, block: _Block, forward: Callable[..., Any]) -> None:
        self._block, self._forward = block, forward
        self._parameters: list[tuple[int, int]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._block.module
        parameters = _versions_of((*module.parameters(), *module.buffers()))
        if self._parameters is not None:  # again
            if self._parameters != parameters:
                raise BlockChangedError(self._block.name)
            return self._forward(module, *args, **kwargs)
        self._parameters = parameters
        given = [*_tensors_of((args, kwargs))]
        versions, kept = _versions_of(given), _kept_by(module)
        result = self._forward(module, *args, **kwargs)
        if versions != _versions_of(given):
            self._block.reason = "it changes what it is given"
        elif not _is_same(kept, _kept_by(module)):
            self._block.reason = "it keeps something of a step"
        return result


def _why_not_now(module: torch.nn.Module) -> str | None:
    for each in module.modules():
        hooks = (*each._forward_hooks.values(), *each._forward_pre_hooks.values())
        # Ours only look, and may look twice.
        is_hooked = any(getattr(hook, "__module__", "") != observation.__name__ for hook in hooks)
        if is_hooked or "forward" in vars(each):
            return "hooks, or another `forward`, were put on it"
        if getattr(each, "gradient_checkpointing", False):
            return "it is computed again already"
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN)


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors_of(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_of(each)


def _versions_of(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    return [(id(each), each._version) for each in tensors]


def _kept_by(module: torch.nn.Module) -> list[tuple[Any, int]]:
    """What lies in a module's attributes, with the length or version of what could change."""
    kept: list[tuple[Any, int]] = []
    for each in module.modules():
        kept += [(value, _size_of(value)) for value in vars(each).values()]
        tensors = (*each._parameters.values(), *each._buffers.values())
        kept += [(one, 0 if one is None else one._version) for one in tensors]
    return kept


def _size_of(value: Any) -> int:
    return len(value) if isinstance(value, dict | list | set) else 0


def _is_same(before: list[tuple[Any, int]], after: list[tuple[Any, int]]) -> bool:
    return len(before) == len(after) and all(
        was is now and size == now_size
        for (was, size), (now, now_size) in zip(before, after, strict=True)
    )
