"""Batch norm and activation folded into the convolution before them, while they are in eval mode.

In eval mode a batch norm multiplies and shifts each channel by constants, which can be multiplied
into the weights once. Modules stay where they are and keep their parameters and buffers; only their
classes change, so that they pass on what the convolution has done already. In training mode
everything runs as it did.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from shorthaul.conv.execution.fingerprint import freeze, look_at
from shorthaul.errors import ConvolutionError
from shorthaul.jit.operators import are_ordinary, is_traced, is_transformed, needs_gradient

_BATCH_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}


class Fold:
    """A convolution's batch norm and the activation after it; either may be missing."""

    def __init__(self, norm: nn.Module | None, activation: nn.Module | None) -> None:
        self.norm, self.activation = norm, activation
        self.is_compiled = False
        self.is_suspended = False  # whether everything runs as it did for now
        self._key: tuple[object, ...] | None = None
        self._folded: tuple[Tensor, Tensor] | None = None

    @property
    def activation_name(self) -> str | None:
        """The name that `conv2d` has for the activation."""
        return None if self.activation is None else name_of(self.activation)

    def is_active(self) -> bool:
        """Whether the convolution does the work of the others now."""
        first = self.norm if self.norm is not None else self.activation
        return first is not None and not first.training and not self.is_suspended

    @property
    def last(self) -> nn.Module | None:
        """The last module whose work is folded."""
        return self.activation if self.activation is not None else self.norm

    def mark(self, output: Tensor) -> Tensor:
        """Let the modules after the convolution know an output in which their work is done."""
        if not torch.compiler.is_compiling():
            output._folded_by = id(self)  # type: ignore[attr-defined]
        elif not torch.compiler.is_exporting():
            self.is_compiled = True  # what compiled code makes bears no mark, whoever takes it
        return output

    def require_own(self, input: Tensor, *, is_last: bool) -> None:
        """Raise unless `input` is what the convolution made: a model may take another path some day."""
        if torch.compiler.is_compiling() or self.is_compiled:
            return
        if getattr(input, "_folded_by", None) != id(self):
            raise ConvolutionError(
                "a batch norm or activation that is folded into the convolution before it was called "
                "with something else.\n  The model takes another path than when it was traced: replace "
                "its convolutions without `fold=True`."
            )
        if is_last:
            del input._folded_by  # type: ignore[attr-defined]

    def apply(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with the batch norm multiplied in."""
        if self.norm is None:
            return weight, bias
        norm: Any = self.norm
        parts = [weight, bias, norm.weight, norm.bias, norm.running_mean, norm.running_var]
        present = [each for each in parts if each is not None]
        if (
            is_traced()
            or is_transformed()
            or not are_ordinary(*present)
            or needs_gradient(*present)
        ):
            return fold_batch_norm(norm, weight, bias)
        key = (norm.eps, *map(look_at, present))
        if None in key:
            return fold_batch_norm(norm, weight, bias)
        if self._folded is None or key != self._key:
            self._folded, self._key = _fold_to_keep(norm, weight, bias), key
        return self._folded

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_key": None, "_folded": None}


def _fold_to_keep(norm: Any, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Folded weights that nobody else writes to, as ordinary tensors whatever the mode.

    Made in inference mode they would have no version, and could not be saved for a gradient later.
    """
    with torch.inference_mode(False), torch.no_grad():
        folded = fold_batch_norm(norm, weight, bias)
    for each in folded:
        freeze(each)
    return folded


def fold_batch_norm(norm: Any, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that equals convolution and batch norm in eval mode.

    >>> norm = nn.BatchNorm2d(2).eval()
    >>> weight, bias = fold_batch_norm(norm, torch.ones(2, 1, 1, 1), None)
    >>> bool(torch.allclose(weight, torch.ones(2, 1, 1, 1), atol=1e-4)), bias.tolist()
    (True, [0.0, 0.0])
    """
    # In double precision, because a division and a root are rounded only once per channel.
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double()
    if bias is not None:
        shift = shift + bias.double()
    shift = shift * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    channels = (-1,) + (1,) * (weight.dim() - 1)
    return (weight.double() * scale.view(channels)).to(weight.dtype), shift.to(weight.dtype)


def name_of(activation: nn.Module) -> str | None:
    """What `conv2d` calls this activation module; `None` if it has no name for it."""
    if isinstance(activation, nn.GELU) and activation.approximate != "none":
        return None
    kind = type(activation)
    return _ACTIVATIONS.get(_UNFOLDED.get(kind, kind))


def find_folds(
    model: nn.Module, run_example: Callable[[], object] | None = None
) -> dict[str, tuple[str | None, str | None]]:
    """Convolution -> (batch norm, activation) that may be folded into it, by their names.

    They must be called once each and directly after one another. That is read from the model's
    graph or, where the model as a whole cannot be traced, from the graph of each forward in it. Forwards
    that look at the sizes of their inputs are traced with those that `run_example` gives them, and with
    others: only what follows for all of them is folded.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    whole = _trace(model, fx.Tracer())
    if whole is not None:
        chains = _find_chains({"": whole}, modules, set())
    else:
        # Forwards that cannot be traced may call what has several names.
        left_out = _find_shared(modules)
        variants = [
            _find_chains(graphs, modules, left_out)
            for graphs in _trace_forwards(model, run_example)
        ]
        chains = [each for each in variants[0] if all(each in others for others in variants)]
    found: dict[str, tuple[str | None, str | None]] = {}
    for first, second, third in chains:
        conv, after = modules[first], modules[second]
        if _has_hooks(conv) or _has_hooks(after):
            continue
        if _is_foldable_norm(after, conv):
            last = third if third is not None and name_of(modules[third]) else None
            found[first] = (second, last)
        elif name_of(after) is not None:
            found[first] = (None, second)
    return found


def _is_foldable_norm(norm: nn.Module, conv: nn.Module) -> bool:
    return (
        type(norm) in _BATCH_NORMS
        and norm.running_mean is not None
        and norm.num_features == getattr(conv, "out_channels", None)
    )


def _has_hooks(module: nn.Module) -> bool:
    """Hooks would see other values after folding."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


class _OwnForward(fx.Tracer):
    """Traces what one module does itself: modules in it are called, not looked into."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return True


def _trace(model: nn.Module, tracer: fx.Tracer) -> fx.Graph | None:
    try:
        return tracer.trace(model)
    except Exception:  # a model may fail to be traced in any way that Python knows
        return None


class _SizedProxy(fx.Proxy):
    """An input whose sizes are numbers, so that a forward can decide by them."""

    sizes: torch.Size

    @property
    def shape(self) -> torch.Size:
        """As a tensor's."""
        return self.sizes

    def size(self, dimension: int | None = None) -> torch.Size | int:
        """As a tensor's."""
        return self.sizes if dimension is None else self.sizes[dimension]


class _SizedForward(_OwnForward):
    """The same with known sizes of the first inputs."""

    def __init__(self, sizes: Sequence[torch.Size]) -> None:
        super().__init__()
        self._sizes = list(sizes)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if node.op != "placeholder" or not self._sizes:
            return super().proxy(node)
        sized = _SizedProxy(node, self)
        sized.sizes = self._sizes.pop(0)
        return sized


# Larger, smaller, odd and even images than the example's, as tracing sees them.
_OTHER_SIZES: tuple[Callable[[int], int], ...] = (
    lambda size: size,
    lambda size: size + 1,
    lambda size: 2 * size + 3,
    lambda size: size // 2 + 1,
)


def _trace_forwards(
    model: nn.Module, run_example: Callable[[], object] | None
) -> list[dict[str, fx.Graph]]:
    """The graphs of all modules that can be traced by themselves, with the prefix of their names.

    One such set, or where sizes decide one for each of several sizes.
    """
    parents = {
        f"{name}." if name else "": module
        for name, module in model.named_modules()
        if any(True for _ in module.children())
    }
    traced = {prefix: _trace(module, _OwnForward()) for prefix, module in parents.items()}
    graphs = {prefix: graph for prefix, graph in traced.items() if graph is not None}
    untraced = {prefix: module for prefix, module in parents.items() if prefix not in graphs}
    sizes = _record_sizes(untraced, run_example) if run_example is not None else {}
    variants = []
    for change in _OTHER_SIZES if sizes else _OTHER_SIZES[:1]:
        variant = dict(graphs)
        for prefix, inputs in sizes.items():
            changed = [torch.Size((*each[:2], *map(change, each[2:]))) for each in inputs]
            graph = _trace(parents[prefix], _SizedForward(changed))
            if graph is not None:
                variant[prefix] = graph
        variants.append(variant)
    return variants


def _record_sizes(
    modules: dict[str, nn.Module], run_example: Callable[[], object]
) -> dict[str, tuple[torch.Size, ...]]:
    """The sizes of the inputs that come first, of the modules that were called and always with the same."""
    seen: dict[str, set[tuple[torch.Size, ...]]] = {prefix: set() for prefix in modules}

    def watch(prefix: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            tensors = itertools.takewhile(lambda each: isinstance(each, Tensor), inputs)
            seen[prefix].add(tuple(each.shape for each in tensors))

        return note

    hooks = [module.register_forward_pre_hook(watch(prefix)) for prefix, module in modules.items()]
    try:
        run_example()
    finally:
        for hook in hooks:
            hook.remove()
    return {prefix: calls.pop() for prefix, calls in seen.items() if len(calls) == 1}


def _find_shared(modules: dict[str, nn.Module]) -> set[int]:
    """Modules that have more than one name."""
    names = collections.Counter(map(id, modules.values()))
    return {identity for identity, count in names.items() if count > 1}


def _find_chains(
    graphs: dict[str, fx.Graph], modules: dict[str, nn.Module], left_out: set[int]
) -> list[tuple[str, str, str | None]]:
    """A convolution, what alone takes its output, and what alone takes that one's; each called once."""
    calls: collections.Counter[int] = collections.Counter()
    for prefix, graph in graphs.items():
        for node in graph.find_nodes(op="call_module"):
            calls[id(modules[f"{prefix}{node.target}"])] += 1

    def only_user(node: fx.Node, prefix: str) -> fx.Node | None:
        """The module call that alone takes this node's value, if its module is called once."""
        users = list(node.users)
        if len(users) != 1 or users[0].op != "call_module" or len(users[0].all_input_nodes) != 1:
            return None
        return users[0] if is_called_once(users[0], prefix) else None

    def is_called_once(node: fx.Node, prefix: str) -> bool:
        identity = id(modules[f"{prefix}{node.target}"])
        return calls[identity] == 1 and identity not in left_out

    chains: list[tuple[str, str, str | None]] = []
    for prefix, graph in graphs.items():
        for node in graph.find_nodes(op="call_module"):
            name = f"{prefix}{node.target}"
            is_convolution = isinstance(modules[name], nn.Conv1d | nn.Conv2d | nn.Conv3d)
            second = only_user(node, prefix) if is_convolution else None
            if second is not None and is_called_once(node, prefix):
                third = only_user(second, prefix)
                last = None if third is None else f"{prefix}{third.target}"
                chains.append((name, f"{prefix}{second.target}", last))
    return chains


class FoldedAway(nn.Module):
    """A batch norm or activation whose work the convolution before it does in eval mode."""

    fold: Fold

    def forward(self, input: Tensor) -> Tensor:
        """What came in, while the convolution has done the work; else as always."""
        if self.fold.is_active():
            self.fold.require_own(input, is_last=self is self.fold.last)
            return input
        result: Tensor = super().forward(input)
        return result


def _folded_class(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of its own per kind, findable by name so that models with it can be pickled."""
    name = f"Folded{kind.__name__}"
    words = {"__module__": __name__, "__doc__": f"{kind.__name__}, done by the layer before it."}
    globals()[name] = type(name, (FoldedAway, kind), words)
    folded: type[nn.Module] = globals()[name]
    return folded


_FOLDED = {kind: _folded_class(kind) for kind in (*_BATCH_NORMS, *_ACTIVATIONS)}
_UNFOLDED = {folded: kind for kind, folded in _FOLDED.items()}


def fold_away(module: nn.Module, fold: Fold) -> None:
    """Let the convolution of `fold` do the work of `module`."""
    module.__class__ = _FOLDED[type(module)]
    module.__dict__["fold"] = fold


def restore(module: nn.Module) -> None:
    """Undo `fold_away`."""
    module.__class__ = _UNFOLDED[type(module)]
    del module.__dict__["fold"]
