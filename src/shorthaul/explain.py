"""Showing how something came to be: `sh.explain(x)` is every stage of what shorthaul made.

Whatever has stages says so with a method `explain() -> str`; this module only asks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from shorthaul.errors import ExplainError


@runtime_checkable
class Explainable(Protocol):
    """Anything that can tell how it was made."""

    def explain(self) -> str:
        """Every stage, as text."""


def explain(subject: object) -> str:
    """How `subject` came to be: source, passes, schedules, commands, byte counts.

    Of a model of PyTorch, each of the layers that are ours, by its name.

    >>> import shorthaul as sh
    >>> sh.explain(42)
    Traceback (most recent call last):
        ...
    shorthaul.errors.ExplainError: cannot explain 42: expected something that shorthaul made, such as a kernel.
    """
    if isinstance(subject, Explainable) and _can_explain(subject):
        return subject.explain()
    parts = [
        f"=== {name} ({type(layer).__name__}) ===\n\n{layer.explain()}"
        for name, layer in _find_layers(subject)
    ]
    if not parts:
        raise ExplainError(subject)
    return "\n\n".join(parts)


def _can_explain(subject: object) -> bool:
    # Layers of PyG have a property of that name.
    return not isinstance(subject, type) and callable(getattr(subject, "explain", None))


def _find_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """The layers of ours in a model of PyTorch, without those that are parts of others."""
    if isinstance(model, type) or not callable(getattr(model, "named_modules", None)):
        return
    last = None
    for name, each in model.named_modules():
        is_ours = type(each).__module__.partition(".")[0] == "shorthaul"
        if is_ours and _can_explain(each) and (last is None or not name.startswith(f"{last}.")):
            last = name
            yield name, each
