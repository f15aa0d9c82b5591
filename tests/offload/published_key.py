"""What the published identity of tensors does to gradients, re-implemented to be looked at.

SSDTrain knows a saved tensor by (time stamp of its storage, dtype, shape, strides, device), with
neither the offset into the storage nor its version. `PublishedKey` saves each such key once, as its
authors do, but in memory: what goes wrong is the key's fault and not a disk's.

`python -m tests.offload.published_key` prints the table in `docs/offload-design.md`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from tests.offload.cases import CASES, MODULES, leaf, unbound_qkv
from tests.offload.keep_all import Step, gradients_of, require_equal

EQUAL, WRONG, SILENT = "bit-equal", "**wrong, in silence**", "**no error**"


class PublishedKey(torch.autograd.graph.saved_tensors_hooks):
    """Saves one copy per published key."""

    def __init__(self) -> None:
        self._stamps = itertools.count()
        self._copies: dict[tuple[object, ...], torch.Tensor] = {}
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> object:
        if tensor.layout is not torch.strided or (tensor.is_leaf and tensor.requires_grad):
            return tensor
        storage = tensor.untyped_storage()
        if not hasattr(storage, "stamp"):
            storage.stamp = next(self._stamps)
        key = (storage.stamp, tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if key not in self._copies:
            self._copies[key] = tensor.detach().clone(memory_format=torch.preserve_format)
        return key

    def _unpack(self, packed: object) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else self._copies[packed]


def list_steps() -> Iterator[tuple[str, Sequence[torch.Tensor], Step]]:
    """Every case of the matrix: its name, the leaves, and the step."""
    for case in CASES:
        x = leaf(*((64, 192) if case is unbound_qkv else (64, 64)))
        yield case.__name__.replace("_", " "), [x], lambda case=case, x=x: case(x)
    for name, (make, shape) in MODULES.items():
        torch.manual_seed(0)
        module, x = make(), leaf(*shape)

        def step(module: torch.nn.Module = module, x: torch.Tensor = x) -> torch.Tensor:
            output = module(x)
            return (output[0] if isinstance(output, tuple) else output).square().mean()

        yield f"{name} module", [x, *module.parameters()], step


def judge(leaves: Sequence[torch.Tensor], step: Step, save: Callable[[], object]) -> str:
    """What becomes of the gradients when tensors are saved inside of `save()`."""
    expected = gradients_of(leaves, step)
    with save():  # type: ignore[attr-defined]
        got = gradients_of(leaves, step)
    try:
        require_equal(expected, got)
    except AssertionError:
        return WRONG
    return EQUAL


def judge_change_in_place(save: Callable[[], object]) -> str:
    """Whether a tensor that changes after it was saved is noticed, as autograd notices it."""
    x = leaf(64, 64)
    with save():  # type: ignore[attr-defined]
        h = x * 2
        loss = (h * h.sin()).sum()
        h.add_(1)
        loss = loss + (h * h).sum()  # saved again: the same key, another content
    try:
        loss.backward()
    except RuntimeError:
        return "raises, as it must"
    return SILENT


def render_table() -> str:
    """The outcome of every case, as in the documentation."""
    rows = [(name, judge(leaves, step, PublishedKey)) for name, leaves, step in list_steps()]
    rows.append(("change in place after saving", judge_change_in_place(PublishedKey)))
    lines = ["| case | gradients with the published key |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {outcome} |" for name, outcome in rows)])


if __name__ == "__main__":
    print(render_table())
