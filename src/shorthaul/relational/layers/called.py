"""Whether a call of a module is what its class says, or a user sees or changes something of it."""

from __future__ import annotations

from torch import nn

PACKAGE = __name__.partition(".")[0]
_CALLS = ("forward", "read", "__call__", "_call_impl")  # what runs in a call of a layer


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see calls of `module`."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def is_called_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of `module` does what `kind` does: no subclass or instance has a forward of its own."""
    return not any(name in vars(module) for name in _CALLS) and all(
        getattr(type(module), name, None) is getattr(kind, name, None) for name in _CALLS
    )


def is_called_as_ours(module: nn.Module) -> bool:
    """The same of a layer of ours, or of a subclass of it."""
    ours = next(each for each in type(module).__mro__ if each.__module__.startswith(f"{PACKAGE}."))
    return is_called_as(module, ours)
