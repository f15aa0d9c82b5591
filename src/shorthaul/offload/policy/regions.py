"""Regions: parts of a model that may be computed again instead of being kept or moved.

A region is a module or a function that the user marks. Inside `sh.offload_activations` the plan
decides for each call of one whether it runs as it is or under `torch.utils.checkpoint`, which keeps
its inputs, computes it again in the backward pass and puts the random state back for that. Outside
of it a region is what it was before.

>>> import torch, shorthaul as sh
>>> block = sh.offload.region(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()))
>>> block(torch.ones(2, 8)).shape
torch.Size([2, 8])
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

import torch

Marked = TypeVar("Marked", bound=Callable[..., Any])


class RunsRegions(Protocol):
    """What a region needs of the context that it is called in."""

    def run_region(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function: as it is, or so that it is computed again later."""


class _Entered(threading.local):
    """The contexts that this thread is in, as autograd's hooks are also a thread's own."""

    def __init__(self) -> None:
        self.contexts: list[RunsRegions] = []


_entered = _Entered()


def enter(context: RunsRegions) -> None:
    """Regions called from now on in this thread ask `context`."""
    _entered.contexts.append(context)


def leave(context: RunsRegions) -> None:
    """Ask it no more."""
    with contextlib.suppress(ValueError):  # left in another thread than it was entered in
        _entered.contexts.remove(context)


def region(target: Marked) -> Marked:
    """Mark a module or a function as one that may be computed again; returns it, marked.

    A module stays the same module, with the same names in its `state_dict`. A region must compute
    the same again from the same inputs and random state, and change nothing else, as with
    `torch.utils.checkpoint`.
    """
    if isinstance(target, torch.nn.Module):
        if not isinstance(target.__dict__.get("forward"), ModuleRegion):
            target.forward = ModuleRegion(target)
        return target

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(target, args, kwargs)

    return cast(Marked, call)


def unmark(module: torch.nn.Module) -> None:
    """Make a module that was marked what it was before."""
    marked = module.__dict__.get("forward")
    if isinstance(marked, ModuleRegion):
        del module.forward
        if marked.before is not None:
            module.forward = marked.before


class ModuleRegion:
    """Stands in a marked module's place of `forward`. It can be copied and pickled with it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.before: Callable[..., Any] | None = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward as a region."""
        plain = self.before or functools.partial(type(self.module).forward, self.module)
        return _call(plain, args, kwargs)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _entered.contexts or not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return _entered.contexts[-1].run_region(function, args, kwargs)


Regions = type[torch.nn.Module] | Iterable[torch.nn.Module]


def mark_regions(model: torch.nn.Module, regions: Regions) -> list[torch.nn.Module]:
    """Mark parts of a model, given one by one or by their class; returns those that were not yet.

    Of modules of the class that lie inside one another, only the outermost is a region of its own
    when it runs.
    """
    chosen = (
        [each for each in model.modules() if isinstance(each, regions)]
        if isinstance(regions, type)
        else list(regions)
    )
    fresh = [each for each in chosen if not isinstance(each.__dict__.get("forward"), ModuleRegion)]
    for each in fresh:
        region(each)
    return fresh


@contextlib.contextmanager
def watch_recomputed(note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Show `note` every tensor that is saved inside, and leave it to the hooks that are set.

    Recomputing saves its tensors through hooks of its own, so that ours do not see them. A PyTorch
    that does not say which hooks are set leaves them uncounted.
    """
    find_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if find_hooks is None else find_hooks(True)
    if hooks is None:
        yield
        return
    pack_before, unpack_before = hooks

    def pack(tensor: torch.Tensor) -> object:
        note(tensor)
        packed: object = pack_before(tensor)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack_before):
        yield
