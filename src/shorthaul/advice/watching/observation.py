"""Every tensor that one step makes: how large, by which module, what for, and how long it lives.

Operators are watched as PyTorch dispatches them, so it holds for any model, and also for tensors without
memory.

>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
>>> with Observer(model) as observer:
...     model(torch.ones(4, 8)).sum().backward()
>>> memory = observer.finish()
>>> sorted({owner.kind for owner in memory.owners} & {"activations", "gradients"})
['activations', 'gradients']
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# What a storage turned out to be for.
ACTIVATIONS, GRADIENTS, TEMPORARIES = "activations", "gradients", "temporaries"
GATHER, CONVOLUTION = "gather", "convolution"


@dataclass(frozen=True, order=True)
class Owner:
    """Whose bytes they are."""

    kind: str
    module: str  # the innermost that was running, "" for none
    operation: str = ""  # "gather" for rows picked by ids, "convolution"; "" for any other


@dataclass(frozen=True)
class StepMemory:
    """What a step held in tensors of its own, from its beginning to its end."""

    owners: tuple[Owner, ...]
    changes: tuple[tuple[float, int, int], ...]  # (seconds, index of the owner, bytes), in order
    saved: tuple[SavedStorage, ...] = ()

    def held(self) -> Iterator[tuple[float, list[int]]]:
        """After each change, the bytes of each owner. The list is one and the same."""
        now = [0] * len(self.owners)
        for seconds, owner, change in self.changes:
            now[owner] += change
            yield seconds, now

    @property
    def peak_bytes(self) -> int:
        """The most that was held at a time."""
        return max((sum(now) for _, now in self.held()), default=0)

    def at_peak(self, kind: str | None = None) -> dict[Owner, int]:
        """What was held when it was most, of everything or of one kind."""
        chosen = [
            index for index, owner in enumerate(self.owners) if kind is None or owner.kind == kind
        ]
        peak_bytes, peak = -1, [0] * len(chosen)
        for _, now in self.held():
            held = [now[index] for index in chosen]
            if sum(held) > peak_bytes:
                peak_bytes, peak = sum(held), held
        return {self.owners[i]: held for i, held in zip(chosen, peak, strict=True) if held}

    def peak_of(self, kind: str) -> int:
        """The most that was held of one kind."""
        return sum(self.at_peak(kind).values())


@dataclass(frozen=True)
class SavedStorage:
    """Something that autograd saved; times are numbers of operators, not seconds."""

    size_bytes: int
    module: str
    saved_at: int
    freed_at: int


@dataclass
class _Storage:
    size_bytes: int
    module: str
    operation: str
    made: float
    made_at: int
    saved_at: int | None = None
    freed: float | None = None
    freed_at: int | None = None
    is_gradient: bool = False


@dataclass
class Observer:
    """A context that watches what a step of `model` makes."""

    model: torch.nn.Module
    clock: Callable[[], float] = time.perf_counter
    forward_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _stack: list[tuple[str, float]] = field(default_factory=list)
    _inner_seconds: list[float] = field(default_factory=list)
    _storages: list[_Storage] = field(default_factory=list)
    _living: dict[int, _Storage] = field(default_factory=dict)
    _before: set[int] = field(default_factory=set)
    _operators: int = 0
    _exits: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _began: float = 0.0

    def __enter__(self) -> Observer:
        self._began = self.clock()
        self._before = {
            each.untyped_storage()._cdata
            for each in (*self.model.parameters(), *self.model.buffers())
            if each.layout is torch.strided
        }
        hooks: Any = torch.autograd.graph.saved_tensors_hooks(
            self._note_saved, lambda tensor: tensor
        )
        self._exits.enter_context(hooks)
        self._exits.enter_context(_Watching(self))
        for name, module in self.model.named_modules():
            before = module.register_forward_pre_hook(self._enterer(name), prepend=True)
            after = module.register_forward_hook(self._leaver(), always_call=True)
            self._exits.callback(before.remove)
            self._exits.callback(after.remove)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._exits.close()

    def finish(self) -> StepMemory:
        """What was seen. Call it while the gradients that the step made are still there."""
        for parameter in self.model.parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided:
                found = self._living.get(gradient.untyped_storage()._cdata)
                if found is not None:
                    found.is_gradient = True
        owners: dict[Owner, int] = {}
        changes: list[tuple[float, int, int]] = []
        for each in self._storages:
            kind = TEMPORARIES if each.saved_at is None else ACTIVATIONS
            owner = Owner(GRADIENTS if each.is_gradient else kind, each.module, each.operation)
            index = owners.setdefault(owner, len(owners))
            changes.append((each.made - self._began, index, each.size_bytes))
            if each.freed is not None:
                changes.append((each.freed - self._began, index, -each.size_bytes))
        saved = tuple(
            SavedStorage(each.size_bytes, each.module, each.saved_at, each.freed_at)
            for each in self._storages
            if each.saved_at is not None and each.freed_at is not None and not each.is_gradient
        )
        self._living.clear()
        ordered = sorted(changes, key=lambda change: (change[0], change[2]))
        return StepMemory(tuple(owners), tuple(ordered), saved)

    def note(self, operator: Any, result: Any) -> None:
        """Take note of what an operator returned."""
        self._operators += 1
        for each in pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                self._find(each, operator)

    def _find(self, tensor: torch.Tensor, operator: Any) -> _Storage | None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._before:
            return None
        found = self._living.get(key)
        if found is None:
            module = self._stack[-1][0] if self._stack else ""
            operation = _name_operation(operator)
            found = _Storage(storage.nbytes(), module, operation, self.clock(), self._operators)
            self._living[key] = found
            self._storages.append(found)
            weakref.finalize(storage, self._forget, key, found).atexit = False
        return found

    def _forget(self, key: int, storage: _Storage) -> None:
        storage.freed, storage.freed_at = self.clock(), self._operators
        if self._living.get(key) is storage:
            del self._living[key]

    def _note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided and not isinstance(tensor, torch.nn.Parameter):
            found = self._living.get(tensor.untyped_storage()._cdata)  # or not made by this step
            if found is not None and found.saved_at is None:
                found.saved_at = self._operators
        # A node must not hold its own result: neither could ever be freed.
        return tensor if tensor.is_leaf else tensor.detach()

    def _enterer(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._stack.append((name, self.clock()))
            self._inner_seconds.append(0.0)

        return enter

    def _leaver(self) -> Callable[..., None]:
        def leave(*_: Any) -> None:
            name, since = self._stack.pop()
            seconds = self.clock() - since
            self.forward_seconds[name] += seconds - self._inner_seconds.pop()
            if self._inner_seconds:
                self._inner_seconds[-1] += seconds

        return leave


_GATHERS = ("embedding", "gather", "index", "index_select", "take", "gather_rows")


def _name_operation(operator: Any) -> str:
    name = str(getattr(operator, "_opname", "")).removeprefix("_")
    if "conv" in name:
        return CONVOLUTION
    return GATHER if name in _GATHERS else ""


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        self._observer.note(operator, result)
        return result


def by_prefix(sizes: dict[str, int], limit: int = 12) -> dict[str, int]:
    """Sums by module, as deep in the tree as `limit` names allow.

    >>> by_prefix({"layers.0.a": 3, "layers.0.b": 4, "layers.1.a": 5, "head": 1}, limit=3)
    {'layers.0': 7, 'layers.1': 5, 'head': 1}
    """
    chosen = _sums(sizes, 1)
    depth = 2
    while True:
        deeper = _sums(sizes, depth)
        if len(deeper) > limit or deeper == chosen:
            return dict(chosen)
        chosen, depth = deeper, depth + 1


def _sums(sizes: dict[str, int], depth: int) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, size in sizes.items():
        sums[".".join(name.split(".")[:depth])] += size
    return sums
