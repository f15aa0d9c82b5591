"""Whether a block can be computed again in the backward pass, and give the same, with nobody having asked for it.

What PyTorch's own layers do is known. Layers of transformers say themselves that they can be. Of other
people's code the instructions are read: who keeps something, or asks for something that is not PyTorch's, is
left alone, so a block may be left that could be computed again, and not the other way round.

>>> why_not_repeatable(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()))
>>> why_not_repeatable(torch.nn.BatchNorm1d(4))
'BatchNorm1d counts its batches'
"""

from __future__ import annotations

import argparse
import builtins
import dataclasses
import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from shorthaul.advice.blocks import Blocks, find_blocks

_MODULES = frozenset({"torch", "math", "einops", "typing", "collections"})
_BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "dict",
        "enumerate",
        "float",
        "int",
        "isinstance",
        "len",
        "list",
        "max",
        "min",
        "range",
        "reversed",
        "round",
        "slice",
        "sorted",
        "str",
        "sum",
        "super",
        "tuple",
        "zip",
        "ValueError",
        "RuntimeError",
        "AssertionError",
    ]
)
_KEEPS = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"})
_KEEPS_ITEMS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_GROWS = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popleft",
        "remove",
        "setdefault",
        "update",
        "register_buffer",
        "register_parameter",
        "setattr",
        "write",
    ]
)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def find_repeatable_blocks(model: torch.nn.Module) -> Blocks | None:
    """The model's repeated blocks, if each of them may be computed again."""
    found = find_blocks(model)
    if found is None or any(why_not_repeatable(each) is not None for each in found.modules):
        return None
    return found


def why_not_repeatable(block: torch.nn.Module) -> str | None:
    """A reason to leave it alone; None where it may be computed again."""
    for module in block.modules():
        reason = _why_not_as_it_is(module)
        if reason is not None:
            return f"{type(module).__name__} {reason}"
    if _is_said_to_be(block):
        return None
    for module in block.modules():
        reason = None if _is_pytorchs(module) else _why_not_its_code(module)
        if reason is not None:
            return f"{type(module).__name__} {reason}"
    return None


def _why_not_as_it_is(module: torch.nn.Module) -> str | None:
    if any(getattr(module, name) for name in _HOOKS):
        return "has hooks"
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        return "had its `forward` replaced, or compiled"
    if hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule):
        return "is compiled"
    if isinstance(module, _NormBase) and module.track_running_stats:
        return "counts its batches"
    if isinstance(module, LazyModuleMixin):
        return "has no sizes yet"
    if getattr(module, "max_norm", None) is not None:
        return "changes its weights"
    if getattr(module, "gradient_checkpointing", False):
        return "is computed again already"
    return None


def _is_said_to_be(block: torch.nn.Module) -> bool:
    """Whether its authors have made it for being computed again."""
    names = {f"{each.__module__}.{each.__name__}" for each in type(block).__mro__}
    return "transformers.modeling_layers.GradientCheckpointingLayer" in names


def _is_pytorchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def _why_not_its_code(module: torch.nn.Module) -> str | None:
    try:
        return next(_Reader(module).find_reasons(), None)
    except (OSError, TypeError, ValueError):  # no code that can be read
        return "has code that cannot be read"


class _Reader:
    """Reads what `forward` of a module, and what it calls of the module's own, does besides computing."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._read: set[types.CodeType] = set()

    def find_reasons(self) -> Iterator[str]:
        """Reasons, the first found first."""
        yield from self._of_attribute("forward")

    def _of_function(self, function: Any) -> Iterator[str]:
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, property):
            function = function.fget
        if not isinstance(function, types.FunctionType):
            yield f"calls what is no function of Python's: {function!r}"
            return
        if function.__code__ in self._read:
            return
        self._read.add(function.__code__)
        if set(function.__code__.co_freevars) - {"__class__"}:
            yield f"keeps something around `{function.__name__}`"
        yield from self._of_code(function.__code__, function.__globals__)

    def _of_code(self, code: types.CodeType, names: dict[str, Any]) -> Iterator[str]:
        for each in dis.get_instructions(code):
            # The names of 3.11 to 3.13 carry how the interpreter was going to run them.
            if each.opname in _KEEPS:
                yield f"sets `{each.argval}` in `{code.co_name}`"
            elif each.opname in _KEEPS_ITEMS:
                yield f"sets items in `{code.co_name}`"
            elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield from self._of_global(each.argval, names)
            elif each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
                yield from self._of_attribute(each.argval)
            elif each.opname == "IMPORT_NAME":
                yield f"imports `{each.argval}`"
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):  # of a comprehension, or a function inside
                yield from self._of_code(constant, names)

    def _of_global(self, name: str, names: dict[str, Any]) -> Iterator[str]:
        if name not in names:
            if name not in _BUILTINS or not hasattr(builtins, name):
                yield f"calls `{name}`"
            return
        value = names[name]
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _MODULES:
                yield f"uses `{value.__name__}`"
        elif isinstance(value, types.FunctionType):
            if not _is_known(value):
                yield from self._of_function(value)
        elif not (isinstance(value, _PLAIN) or _is_known(value) or _is_constant(value)):
            yield f"uses `{name}`"

    def _of_attribute(self, name: str) -> Iterator[str]:
        if name in _GROWS:
            yield f"calls `{name}`"
            return
        for kind in type(self.module).__mro__:
            if kind in (torch.nn.Module, object):
                break
            if name in vars(kind):
                value = vars(kind)[name]
                if callable(value) or isinstance(value, staticmethod | classmethod | property):
                    yield from self._of_function(value)
        for module in self.module.modules():  # some reach into their parts
            kept = vars(module).get(name)
            if kept is None or isinstance(kept, torch.Tensor | torch.nn.Module) or _is_known(kept):
                continue
            if isinstance(kept, types.FunctionType):
                yield from self._of_function(kept)
            elif not _is_constant(kept):
                yield f"keeps an object of its own: `{name}`"


def _is_known(value: Callable[..., Any] | Any) -> bool:
    place = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
    return str(place).partition(".")[0] in _MODULES and not isinstance(value, torch.nn.Module)


def _is_constant(value: Any) -> bool:
    """Whether it holds settings, and not what a step could leave behind."""
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(each) for each in value)
    if isinstance(value, list):
        return bool(value) and all(_is_constant(each) for each in value)
    is_settings = dataclasses.is_dataclass(value) and not isinstance(value, type)
    kinds = (argparse.Namespace, types.SimpleNamespace)
    return is_settings or isinstance(value, kinds) or type(value).__name__.endswith("Config")
