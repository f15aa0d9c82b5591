"""A user's network of linear maps and activations, such as GIN's, as steps that a program can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from shorthaul.relational.frontend import language
from shorthaul.relational.layers.called import has_hooks, is_called_as

_LINEAR = (("torch", "Linear"), ("torch_geometric", "Linear"))
_ACTIVATIONS: dict[type[nn.Module], Callable[[Any, Any], Any]] = {
    nn.Identity: lambda value, _: value,
    nn.ReLU: lambda value, _: language.relu(value),
    nn.LeakyReLU: lambda value, slope: language.leaky_relu(value, slope),
    nn.ELU: lambda value, _: language.elu(value),
    nn.GELU: lambda value, _: language.gelu(value),
    nn.SiLU: lambda value, _: language.silu(value),
    nn.Sigmoid: lambda value, _: language.sigmoid(value),
    nn.Tanh: lambda value, _: language.tanh(value),
}


class Map(NamedTuple):
    """A linear map: its widths, and whether it has a bias."""

    width: int
    out: int
    has_bias: bool


class Activation(NamedTuple):
    """A function of every number."""

    kind: type[nn.Module]
    slope: float | None  # of a leaky ReLU


@dataclass(frozen=True)
class Network:
    """What a network does, and the linear maps that it does it with."""

    steps: tuple[Map | Activation, ...]  # two networks with equal ones have one program
    maps: tuple[nn.Linear, ...]

    def follow(self, value: Any, weights: Mapping[str, Any]) -> Any:
        """The network's result for `value`, in the language."""
        number = 0
        for each in self.steps:
            if isinstance(each, Map):
                number += 1
                value = language.linear(value, weights[f"map_{number}"])
                value = value + weights[f"bias_{number}"] if each.has_bias else value
            else:
                value = _ACTIVATIONS[each.kind](value, each.slope)
        return value


def read_network(module: nn.Module) -> Network | str:
    """The steps of `module`; where the language cannot say one of them, a sentence that says which."""
    steps: list[Map | Activation] = []
    maps: list[nn.Linear] = []
    for each in _flatten(module):
        kind = type(each)
        if has_hooks(each) or not is_called_as(each, kind):
            return f"its network has a {kind.__name__} with hooks or a forward of its own"
        if (kind.__module__.partition(".")[0], kind.__name__) in _LINEAR:
            linear: Any = each
            maps.append(linear)
            out, width = linear.weight.shape
            steps.append(Map(width, out, linear.bias is not None))
        elif isinstance(each, nn.Dropout) and (each.p == 0 or not each.training):
            continue
        elif kind in _ACTIVATIONS and not _has_options(each):
            steps.append(Activation(kind, getattr(each, "negative_slope", None)))
        else:
            return f"its network has a step that the language has not: {each}"
    if not maps:
        return "its network has no linear map"
    return Network(tuple(steps), tuple(maps))


def _flatten(module: nn.Module) -> Sequence[nn.Module]:
    """The modules that are called one after the other; a `Sequential` of a user's stays one."""
    if type(module) is not nn.Sequential or has_hooks(module):
        return [module]
    if not is_called_as(module, nn.Sequential):
        return [module]
    return [part for each in module for part in _flatten(each)]


def _has_options(module: nn.Module) -> bool:
    """Whether an activation is another than that of its name."""
    return getattr(module, "alpha", 1.0) != 1.0 or getattr(module, "approximate", "none") != "none"
