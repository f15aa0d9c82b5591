"""A model's PyG and DGL layers made to run compiled, in place, and put back.

A layer that is known is given the class of ours that has its parameters under the same names, so its
parameters, hooks and `state_dict` stay, and optimizers never notice. PyG and DGL are not imported: a
layer is known by the package and the name of its class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.nn.parameter import UninitializedParameter

from shorthaul.errors import LayerArgumentError
from shorthaul.module_swap import Swap, swap_class
from shorthaul.relational.layers import (
    DGLHGTConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HGTConv,
    RelGraphConv,
    RGATConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)
from shorthaul.report_table import layer_table

_PACKAGES = {"torch_geometric": "PyG", "dgl": "DGL"}
_STATE = frozenset(vars(nn.Module()))  # what every module has: parameters, hooks, training
_HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")


class _CannotSwapError(Exception):
    """A layer is left as it is, for this reason."""


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
    _swaps: list[Swap] = field(repr=False)

    def summary(self) -> str:
        """One line, for logs."""
        return f"{len(self.swapped):,} graph layers compiled, {len(self.left):,} left as they were"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        swapped = [{"layer": each.name, "was": each.was, "now": each.now} for each in self.swapped]
        return {"swapped": swapped, "left": dict(self.left)}

    def table(self) -> Table:
        """A table for `rich.print`, which fits 80 columns."""
        table = layer_table(self.summary(), "layer", "was", "now", "why it was left")
        for each in self.swapped:
            table.add_row(each.name, each.was, each.now, "")
        modules = dict(self.model.named_modules())
        for name, reason in self.left.items():
            table.add_row(name, _describe(type(modules[name])), "left as it was", reason)
        return table

    def revert(self) -> None:
        """Put every layer back to what it was; a second call does nothing."""
        while self._swaps:
            self._swaps.pop().undo()


def accelerate(model: nn.Module) -> AccelerationReport:
    """Let shorthaul compute the graph layers of `model` that it knows, in place.

    Known are PyG's `RGCNConv`, `FastRGCNConv`, `RGATConv`, `HGTConv`, `HANConv`, `GATConv`,
    `GATv2Conv`, `TransformerConv`, `SAGEConv`, `GraphConv`, `GCNConv` and `GINConv`, and DGL's
    `RelGraphConv` and `HGTConv`. The model is called as before, with the same
    objects::

        report = sh.relational.accelerate(model)
        rich.print(report.table())      # what was swapped, what was left, and why
        out = model(data.x, data.edge_index, data.edge_type)
        report.revert()
    """
    report = AccelerationReport(model, [], {}, [])
    for name, module in model.named_modules():
        own = type(module)
        kind = _find_kind(own)
        if kind is None:
            continue
        try:
            if kind is not own:
                raise _CannotSwapError(
                    f"is a subclass of {kind.__name__}, which may compute something else"
                )
            ours = _make_ours(module)
        except _CannotSwapError as reason:
            report.left[name] = str(reason)
            continue
        report._swaps.append(_adopt(module, ours))
        report.swapped.append(
            SwappedLayer(name, _describe(kind), f"sh.relational.{type(ours).__name__}")
        )
    return report


def _find_kind(kind: type) -> type | None:
    """The graph layer of PyG or DGL that `kind` is or descends from."""
    for each in kind.__mro__:
        package, _, rest = each.__module__.partition(".")
        is_layer = package in _PACKAGES and ".conv." in f".{rest}."
        if is_layer and each.__name__ not in ("MessagePassing", "Module"):
            return each if issubclass(each, nn.Module) else None
    return None


def _describe(kind: type) -> str:
    found = _find_kind(kind) or kind
    package = _PACKAGES.get(found.__module__.partition(".")[0], "")
    return f"{package} {kind.__name__}".strip()


def _make_ours(module: nn.Module) -> nn.Module:
    """Our layer with the options of `module`, and parameters without memory."""
    kind = type(module)
    read = _KNOWN.get((kind.__module__.partition(".")[0], kind.__name__))
    if read is None:
        raise _CannotSwapError("shorthaul has no such layer")
    _require_plain(module)
    try:
        with torch.device("meta"):
            ours = read(module)
    except (LayerArgumentError, AttributeError) as error:
        raise _CannotSwapError(f"its options are not those of ours: {error}") from error
    _require_same_parameters(module, ours)
    return ours


def _adopt(module: nn.Module, ours: nn.Module) -> Swap:
    """Give `module` our class, with what ours knows and `module` does not register itself."""
    registered = {*module._parameters, *module._modules, *module._buffers}
    attributes = {
        name: value
        for name, value in vars(ours).items()
        if name not in _STATE and name not in registered
    }
    return swap_class(module, type(ours), attributes)


def _require_plain(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise _CannotSwapError(
                f"`{name}` has no width yet: run the model once, then accelerate"
            )
        if parameter.device.type != "cpu":
            raise _CannotSwapError(f"`{name}` is on {parameter.device}; kernels run on CPUs")
    if getattr(module, "flow", "source_to_target") != "source_to_target":
        raise _CannotSwapError(f"flow is {module.flow!r}; ours goes from source to target")
    if getattr(module, "decomposed_layers", 1) > 1:
        raise _CannotSwapError("decomposed_layers splits its messages, which ours never makes")
    if getattr(module, "explain", False) is True:
        raise _CannotSwapError("it is being explained, which needs its messages")
    for hook in _HOOKS:
        if any(getattr(module, f"_{hook}_forward{when}_hooks", ()) for when in ("_pre", "")):
            raise _CannotSwapError(f"it has hooks on `{hook}`, which ours never calls")


def _require_same_parameters(module: nn.Module, ours: nn.Module) -> None:
    theirs = {name: tuple(each.shape) for name, each in module.named_parameters()}
    expected = {name: tuple(each.shape) for name, each in ours.named_parameters()}
    if theirs != expected:
        name = next(
            each for each in {**theirs, **expected} if theirs.get(each) != expected.get(each)
        )
        raise _CannotSwapError(
            f"`{name}` is {theirs.get(name, 'absent')}, in ours it is {expected.get(name, 'absent')}"
        )


def _require_aggregation(module: Any) -> str:
    if not isinstance(module.aggr, str):
        raise _CannotSwapError(f"aggr is {module.aggr!r}; ours takes one name")
    return module.aggr


def _require_sum(module: Any) -> None:
    if module.aggr not in ("add", "sum"):
        raise _CannotSwapError(f"aggr is {module.aggr!r}; ours adds")


def _read_rgcn(module: Any) -> nn.Module:
    if type(module).__name__ == "FastRGCNConv" and module.aggr == "max":
        raise _CannotSwapError("FastRGCNConv has no maximum, which PyG says at its first call")
    return RGCNConv(
        module.in_channels,
        module.out_channels,
        module.num_relations,
        module.num_bases,
        module.num_blocks,
        _require_aggregation(module),
        root_weight=module.root is not None,
        is_sorted=module.is_sorted,
        bias=module.bias is not None,
    )


def _read_rgat(module: Any) -> nn.Module:
    names = (
        "in_channels", "out_channels", "num_relations", "num_bases", "num_blocks", "mod",
        "attention_mechanism", "attention_mode", "heads", "dim", "concat", "negative_slope",
        "dropout", "edge_dim",
    )  # fmt: skip
    _require_sum(module)
    return RGATConv(**{name: getattr(module, name) for name in names}, bias=module.bias is not None)


def _read_hgt(module: Any) -> nn.Module:
    # A width of -1 is filled in at the first call, in the linear maps alone.
    widths = {name: each.weight.shape[1] for name, each in module.kqv_lin.lins.items()}
    metadata = (list(module.node_types), list(module.edge_types))
    return HGTConv(widths, module.out_channels, metadata, module.heads)


def _read_han(module: Any) -> nn.Module:
    widths = {name: each.weight.shape[1] for name, each in module.proj.items()}
    return HANConv(
        widths,
        module.out_channels,
        module.metadata,
        module.heads,
        module.negative_slope,
        module.dropout,
    )


def _read_gatv2(module: Any) -> nn.Module:
    names = (
        "heads", "concat", "negative_slope", "dropout", "add_self_loops", "edge_dim", "fill_value",
        "share_weights", "residual",
    )  # fmt: skip
    _require_sum(module)
    widths = module.lin_l.weight.shape[1], module.lin_r.weight.shape[1]
    return GATv2Conv(
        widths,
        module.out_channels,
        **{name: getattr(module, name) for name in names},
        bias=module.bias is not None,
    )


def _read_sage(module: Any) -> nn.Module:
    own = module.lin_r if module.root_weight else module.lin_l
    return SAGEConv(
        (module.lin_l.weight.shape[1], own.weight.shape[1]),
        module.out_channels,
        _require_aggregation(module),
        normalize=module.normalize,
        root_weight=module.root_weight,
        project=module.project,
        bias=module.lin_l.bias is not None,
    )


def _read_gat(module: Any) -> nn.Module:
    names = (
        "heads", "concat", "negative_slope", "dropout", "add_self_loops", "edge_dim", "fill_value",
        "residual",
    )  # fmt: skip
    _require_sum(module)
    if module.lin is not None:
        widths = module.lin.weight.shape[1]
    else:
        widths = module.lin_src.weight.shape[1], module.lin_dst.weight.shape[1]
    options = {name: getattr(module, name) for name in names}
    return GATConv(widths, module.out_channels, **options, bias=module.bias is not None)


def _read_graph_conv(module: Any) -> nn.Module:
    return GraphConv(
        (module.lin_rel.weight.shape[1], module.lin_root.weight.shape[1]),
        module.out_channels,
        _require_aggregation(module),
        bias=module.lin_rel.bias is not None,
    )


def _read_gin(module: Any) -> nn.Module:
    # `nn` is the user's own, and stays in its place: ours is made with the same one.
    trains = isinstance(module.eps, nn.Parameter)
    return GINConv(module.nn, module.initial_eps, trains, _require_aggregation(module))


def _read_gcn(module: Any) -> nn.Module:
    if module._cached_edge_index is not None or module._cached_adj_t is not None:
        raise _CannotSwapError("it has kept the degrees of its first call (cached=True)")
    return GCNConv(
        module.lin.weight.shape[1],
        module.out_channels,
        module.improved,
        module.cached,
        module.add_self_loops,
        module.normalize,
        bias=module.bias is not None,
        aggr=_require_aggregation(module),
    )


def _read_transformer(module: Any) -> nn.Module:
    _require_sum(module)
    names = ("heads", "concat", "beta", "dropout", "edge_dim", "root_weight")
    return TransformerConv(
        (module.lin_key.weight.shape[1], module.lin_query.weight.shape[1]),
        module.out_channels,
        **{name: getattr(module, name) for name in names},
        bias=module.lin_key.bias is not None,
    )


def _read_rel_graph(module: Any) -> nn.Module:
    maps = module.linear_r
    return RelGraphConv(
        maps.in_size,
        maps.out_size,
        maps.num_types,
        maps.regularizer,
        maps.num_bases if maps.regularizer else None,
        bias=module.bias,
        activation=module.activation,
        self_loop=module.self_loop,
        dropout=module.dropout.p,
        layer_norm=module.layer_norm,
    )


def _read_dgl_hgt(module: Any) -> nn.Module:
    return DGLHGTConv(
        module.in_size,
        module.head_size,
        module.num_heads,
        module.linear_k.num_types,
        module.relation_att[0].num_types,
        dropout=module.drop.p,
        use_norm=module.use_norm,
    )


# (package, class) -> how its options are read into a layer of ours.
_KNOWN: dict[tuple[str, str], Callable[[Any], nn.Module]] = {
    ("torch_geometric", "RGCNConv"): _read_rgcn,
    ("torch_geometric", "FastRGCNConv"): _read_rgcn,
    ("torch_geometric", "RGATConv"): _read_rgat,
    ("torch_geometric", "HGTConv"): _read_hgt,
    ("torch_geometric", "HANConv"): _read_han,
    ("torch_geometric", "GATv2Conv"): _read_gatv2,
    ("torch_geometric", "SAGEConv"): _read_sage,
    ("torch_geometric", "GATConv"): _read_gat,
    ("torch_geometric", "GraphConv"): _read_graph_conv,
    ("torch_geometric", "GINConv"): _read_gin,
    ("torch_geometric", "GCNConv"): _read_gcn,
    ("torch_geometric", "TransformerConv"): _read_transformer,
    ("dgl", "RelGraphConv"): _read_rel_graph,
    ("dgl", "HGTConv"): _read_dgl_hgt,
}
