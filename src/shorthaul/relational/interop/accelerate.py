"""A model's PyG and DGL layers made to run compiled, in place, and put back.

A layer that is known is given the class of ours that has its parameters under the same names, so its
parameters, hooks and `state_dict` stay, and optimizers never notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Protocol

from rich.table import Table
from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import UninitializedParameter

from shorthaul.module_swap import Swap, swap_class
from shorthaul.relational.interop.joined_calls import GraphChange
from shorthaul.relational.interop.known_layers import CannotSwapError, NotYetError, make_ours
from shorthaul.relational.layers.heterogeneous.to_hetero import RelationConvs
from shorthaul.report_table import layer_table

_PACKAGES = {"torch_geometric": "PyG", "dgl": "DGL"}
_STATE = frozenset(vars(nn.Module()))  # what every module has: parameters, hooks, training
_OPTIONS = (bool, int, float, str, NoneType)
_ABSENT = object()


class _Undoable(Protocol):
    def undo(self) -> None: ...


@dataclass(frozen=True)
class SwappedLayer:
    """One layer that runs compiled now."""

    name: str
    was: str  # such as "PyG FastRGCNConv"
    now: str


@dataclass
class AccelerationReport:
    """What `accelerate` did."""

    model: nn.Module  # as it is now
    swapped: list[SwappedLayer]  # layers that run compiled
    left: dict[str, str]  # name -> why
    waiting: dict[str, str]  # name -> why: layers that are swapped after their first call
    _swaps: list[_Undoable] = field(repr=False)

    def summary(self) -> str:
        """One line, for logs."""
        waiting = f", {len(self.waiting):,} after their first call" if self.waiting else ""
        return (
            f"{len(self.swapped):,} graph layers compiled{waiting}, "
            f"{len(self.left):,} left as they were"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        swapped = [{"layer": each.name, "was": each.was, "now": each.now} for each in self.swapped]
        return {"swapped": swapped, "waiting": dict(self.waiting), "left": dict(self.left)}

    def table(self) -> Table:
        """A table for `rich.print`, which fits 80 columns."""
        table = layer_table(self.summary(), "layer", "was", "now", "why it was left")
        for each in self.swapped:
            table.add_row(each.name, each.was, each.now, "")
        modules = dict(self.model.named_modules())
        for now, those in (("swapped later", self.waiting), ("left as it was", self.left)):
            for name, reason in those.items():
                table.add_row(name, _describe(type(modules[name])), now, reason)
        return table

    def revert(self) -> None:
        """Put every layer back to what it was; a second call does nothing."""
        while self._swaps:
            self._swaps.pop().undo()
        self.waiting.clear()

    def _take(self, name: str, module: nn.Module, kind: type) -> None:
        """Swap one layer, or note why not, or have it swapped when its widths are known."""
        try:
            if kind is not type(module):
                raise CannotSwapError(
                    f"is a subclass of {kind.__name__}, which may compute something else"
                )
            ours = make_ours(module)
        except NotYetError as reason:
            self.waiting[name] = str(reason)
            self._swaps.append(_LayerFirstCall(self, name, module, kind))
        except CannotSwapError as reason:
            self.left[name] = str(reason)
        else:
            self._swaps.append(_adopt(module, ours))
            self.swapped.append(
                SwappedLayer(name, _describe(kind), f"sh.relational.{type(ours).__name__}")
            )

    def _join(self, name: str, model: GraphModule, prefixes: list[str]) -> None:
        """Join the calls of each relation's layer in a graph of `torch.fx`, or note why not, or wait."""
        change, waiting = GraphChange(model), []
        for prefix in prefixes:
            whole = _join_names(name, prefix)
            if any(each.startswith(f"{whole}.") for each in self.waiting):
                self.waiting[whole] = "its layers have no widths before the first call"
                waiting.append(prefix)
                continue
            try:
                change.join(prefix)
            except CannotSwapError as reason:
                self.left[whole] = str(reason)
            else:
                now = f"sh.relational.{RelationConvs.__name__}"
                self.swapped.append(SwappedLayer(whole, "layers of to_hetero", now))
        if change.containers:
            self._swaps.append(change.finish())
        if waiting:
            self._swaps.append(_GraphFirstCall(self, name, model, waiting))


class _FirstCall:
    """A module whose widths its first call will find: after it, what was waiting for it is swapped."""

    def __init__(self, report: AccelerationReport, module: nn.Module) -> None:
        self.report, self.module = report, module
        self.hook = module.register_forward_hook(self)

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        if any(isinstance(each, UninitializedParameter) for each in module.parameters()):
            return  # a relation that was not there
        self.undo()
        self.take()

    def take(self) -> None:
        """Swap what was waiting."""
        raise NotImplementedError

    def undo(self) -> None:
        """Wait no longer."""
        self.hook.remove()


class _LayerFirstCall(_FirstCall):
    def __init__(
        self, report: AccelerationReport, name: str, module: nn.Module, kind: type
    ) -> None:
        super().__init__(report, module)
        self.name, self.kind = name, kind

    def take(self) -> None:
        if self.report.waiting.pop(self.name, None) is not None:
            self.report._take(self.name, self.module, self.kind)


class _GraphFirstCall(_FirstCall):
    """The model, called with layers that find their widths: by then these are ours."""

    def __init__(
        self, report: AccelerationReport, name: str, module: GraphModule, prefixes: list[str]
    ) -> None:
        super().__init__(report, module)
        self.name, self.prefixes = name, prefixes

    def take(self) -> None:
        names = [_join_names(self.name, prefix) for prefix in self.prefixes]
        if all(self.report.waiting.pop(each, None) is not None for each in names):
            model: Any = self.module
            self.report._join(self.name, model, self.prefixes)


def accelerate(model: nn.Module) -> AccelerationReport:
    """Let shorthaul compute the graph layers of `model` that it knows, in place.

    Known are PyG's `RGCNConv`, `FastRGCNConv`, `RGATConv`, `HGTConv`, `HANConv`, `GATConv`,
    `GATv2Conv`, `TransformerConv`, `SAGEConv`, `GraphConv`, `GCNConv`, `GINConv` and `HeteroConv`,
    and DGL's `RelGraphConv`, `HGTConv`, `SAGEConv`, `GraphConv`, `GATConv` and `HeteroGraphConv`. A
    layer that finds its widths at its first call is swapped after it. In a model that `to_hetero`
    made, the layers of all relations are called at once, as those of a `HeteroConv`. The model is called as before,
    with the same objects::

        report = sh.relational.accelerate(model)
        rich.print(report.table())      # what was swapped, what was left, and why
        out = model(data.x, data.edge_index, data.edge_type)
        report.revert()
    """
    report = AccelerationReport(model, [], {}, {}, [])
    found = [(name, module, _find_kind(type(module))) for name, module in model.named_modules()]
    # The layers of a HeteroConv come before itself: it computes those together that are ours.
    for name, module, kind in reversed(found):
        if kind is not None:
            report._take(name, module, kind)
    for name, module, _ in found:
        if isinstance(module, GraphModule):
            start = f"{name}." if name else ""
            layers = [
                each for each, _, kind in found if kind is not None and each.startswith(start)
            ]
            report._join(name, module, _find_containers(module, layers, start))
    order = {name: number for number, (name, _, _) in enumerate(found)}
    report.swapped.sort(key=lambda each: order[each.name])
    report.left = {name: report.left[name] for name in order if name in report.left}
    report.waiting = {name: report.waiting[name] for name in order if name in report.waiting}
    return report


def _join_names(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def _find_containers(model: GraphModule, layers: list[str], start: str) -> list[str]:
    """The names, within `model`, of the `ModuleDict`s that these layers are in."""
    inside = dict.fromkeys(each.removeprefix(start).rpartition(".")[0] for each in layers)
    return [
        each for each in inside if each and isinstance(model.get_submodule(each), nn.ModuleDict)
    ]


def _find_kind(kind: type) -> type | None:
    """The graph layer of PyG or DGL that `kind` is or descends from."""
    for each in kind.__mro__:
        package, _, rest = each.__module__.partition(".")
        is_layer = "conv" in rest.split(".") or each.__name__ == "HeteroGraphConv"
        if package in _PACKAGES and is_layer and each.__name__ not in ("MessagePassing", "Module"):
            return each if issubclass(each, nn.Module) else None
    return None


def _describe(kind: type) -> str:
    found = _find_kind(kind) or kind
    package = _PACKAGES.get(found.__module__.partition(".")[0], "")
    return f"{package} {kind.__name__}".strip()


def _adopt(module: nn.Module, ours: nn.Module) -> Swap:
    """Give `module` our class, with what ours knows and `module` does not register itself.

    An option that both have stays the module's own, so that what a user sets it to outlives `revert`.
    """
    registered = {*module._parameters, *module._modules, *module._buffers}
    attributes = {
        name: value
        for name, value in vars(ours).items()
        if name not in _STATE
        and name not in registered
        and not _is_same_option(module, name, value)
    }
    return swap_class(module, type(ours), attributes)


def _is_same_option(module: nn.Module, name: str, value: Any) -> bool:
    theirs = vars(module).get(name, _ABSENT)
    return type(theirs) is type(value) and isinstance(value, _OPTIONS) and theirs == value
