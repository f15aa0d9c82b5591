"""The layers of PyG and DGL that are known: how the options of each are read into a layer of ours.

PyG and DGL are not imported: a layer is known by the package and the name of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.layers import (
    DGLGATConv,
    DGLGraphConv,
    DGLHeteroGraphConv,
    DGLHGTConv,
    DGLSAGEConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HeteroConv,
    HGTConv,
    RelGraphConv,
    RGATConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)
from shorthaul.relational.layers.called import has_hooks

# Modules inside of layers that ours call as they are: those of relations, users' networks, activations.
_CALLED = ("convs", "mods", "nn", "activation", "dropout")
_MAKERS = ("torch", "torch_geometric", "dgl", "shorthaul")  # whose linear maps have weights alone
_HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")


class CannotSwapError(Exception):
    """A layer is left as it is, for this reason."""


class NotYetError(Exception):
    """A layer does not know its widths before its first call."""


def make_ours(module: nn.Module) -> nn.Module:
    """Our layer with the options of `module`, and parameters without memory."""
    kind = type(module)
    read = _KNOWN.get((kind.__module__.partition(".")[0], kind.__name__))
    if read is None:
        raise CannotSwapError("shorthaul has no such layer")
    _require_plain(module)
    try:
        with torch.device("meta"):
            ours = read(module)
    except (LayerArgumentError, AttributeError) as error:
        raise CannotSwapError(f"its options are not those of ours: {error}") from error
    _require_same_parameters(module, ours)
    return ours


def _require_plain(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise NotYetError(f"`{name}` has no width before the first call")
        if parameter.device.type != "cpu":
            raise CannotSwapError(f"`{name}` is on {parameter.device}; kernels run on CPUs")
    if getattr(module, "flow", "source_to_target") != "source_to_target":
        raise CannotSwapError(f"flow is {module.flow!r}; ours goes from source to target")
    if getattr(module, "decomposed_layers", 1) > 1:
        raise CannotSwapError("decomposed_layers splits its messages, which ours never makes")
    if getattr(module, "explain", False) is True:
        raise CannotSwapError("it is being explained, which needs its messages")
    for name, inner in _find_inner(module):
        if has_hooks(inner):
            raise CannotSwapError(f"it has hooks on `{name}`, which ours never calls")
        if type(inner).__module__.partition(".")[0] not in _MAKERS:
            raise CannotSwapError(
                f"`{name}` is a {type(inner).__name__}, which ours never calls: it reads the weight"
            )
    for hook in _HOOKS:
        if any(getattr(module, f"_{hook}_forward{when}_hooks", ()) for when in ("_pre", "")):
            raise CannotSwapError(f"it has hooks on `{hook}`, which ours never calls")


def _find_inner(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules inside whose parameters are read, and that are not called themselves."""
    called = [module._modules.get(name) for name in _CALLED]
    theirs = {id(inner) for each in called if each is not None for inner in each.modules()}
    for name, inner in module.named_modules():
        if inner is not module and id(inner) not in theirs:
            yield name, inner


def _require_same_parameters(module: nn.Module, ours: nn.Module) -> None:
    theirs = {name: tuple(each.shape) for name, each in module.named_parameters()}
    expected = {name: tuple(each.shape) for name, each in ours.named_parameters()}
    if theirs != expected:
        name = next(
            each for each in {**theirs, **expected} if theirs.get(each) != expected.get(each)
        )
        raise CannotSwapError(
            f"`{name}` is {theirs.get(name, 'absent')}, in ours it is {expected.get(name, 'absent')}"
        )


def _require_aggregations(module: Any) -> Any:
    """One name, or several whose results are put side by side."""
    if isinstance(module.aggr, list):
        mode = getattr(module.aggr_module, "mode", None)
        if mode != "cat":
            raise CannotSwapError(
                f"it joins several aggregations by {mode!r}; ours puts them side by side"
            )
        return list(module.aggr)
    return _require_aggregation(module)


def _require_aggregation(module: Any) -> str:
    if not isinstance(module.aggr, str):
        raise CannotSwapError(f"aggr is {module.aggr!r}; ours takes one name")
    return module.aggr


def _require_sum(module: Any) -> None:
    if module.aggr not in ("add", "sum"):
        raise CannotSwapError(f"aggr is {module.aggr!r}; ours adds")


def _read_rgcn(module: Any) -> nn.Module:
    if type(module).__name__ == "FastRGCNConv" and module.aggr == "max":
        raise CannotSwapError("FastRGCNConv has no maximum, which PyG says at its first call")
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
    aggr = _require_aggregations(module)
    parts = len(aggr) if isinstance(aggr, list) else 1
    own, own_parts = (module.lin_r, 1) if module.root_weight else (module.lin_l, parts)
    return SAGEConv(
        (module.lin_l.weight.shape[1] // parts, own.weight.shape[1] // own_parts),
        module.out_channels,
        aggr,
        normalize=module.normalize,
        root_weight=module.root_weight,
        project=module.project,
        bias=module.lin_l.bias is not None,
    )


def _read_hetero(module: Any) -> nn.Module:
    # The relations' layers stay in their place: ours is made with the same ones.
    return HeteroConv(dict(module.convs.items()), module.aggr)


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
        raise CannotSwapError("it has kept the degrees of its first call (cached=True)")
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


def _read_dgl_sage(module: Any) -> nn.Module:
    if module._aggre_type not in ("mean", "pool"):
        raise CannotSwapError(f"its aggregator is {module._aggre_type!r}; ours has mean and pool")
    return DGLSAGEConv(
        (module._in_src_feats, module._in_dst_feats),
        module._out_feats,
        module._aggre_type,
        module.feat_drop.p,
        bias=module.fc_self.bias is not None,
        norm=module.norm,
        activation=module.activation,
    )


def _read_dgl_graph_conv(module: Any) -> nn.Module:
    if module.weight is None:
        raise CannotSwapError("it has no weight of its own (weight=False)")
    return DGLGraphConv(
        module._in_feats,
        module._out_feats,
        module._norm,
        bias=module.bias is not None,
        activation=module._activation,
        allow_zero_in_degree=module._allow_zero_in_degree,
    )


def _read_dgl_gat(module: Any) -> nn.Module:
    widths = module._in_src_feats, module._in_dst_feats
    res_fc = module.res_fc
    has_map_bias = getattr(res_fc, "bias", None) is not None
    return DGLGATConv(
        module._in_src_feats if hasattr(module, "fc") else widths,
        module._out_feats,
        module._num_heads,
        module.feat_drop.p,
        module.attn_drop.p,
        module.leaky_relu.negative_slope,
        residual=res_fc is not None,
        activation=module.activation,
        allow_zero_in_degree=module._allow_zero_in_degree,
        # Of a version without this name, the call takes other arguments: it is left.
        bias=module.has_explicit_bias or has_map_bias,
    )


def _read_dgl_hetero(module: Any) -> nn.Module:
    # The relations' layers stay in their place: ours is made with the same ones.
    return DGLHeteroGraphConv(module.mod_dict, module.agg_fn)


# (package, class) -> how its options are read into a layer of ours.
_KNOWN: dict[tuple[str, str], Callable[[Any], nn.Module]] = {
    ("torch_geometric", "RGCNConv"): _read_rgcn,
    ("torch_geometric", "FastRGCNConv"): _read_rgcn,
    ("torch_geometric", "RGATConv"): _read_rgat,
    ("torch_geometric", "HGTConv"): _read_hgt,
    ("torch_geometric", "HANConv"): _read_han,
    ("torch_geometric", "GATv2Conv"): _read_gatv2,
    ("torch_geometric", "SAGEConv"): _read_sage,
    ("torch_geometric", "HeteroConv"): _read_hetero,
    ("torch_geometric", "GATConv"): _read_gat,
    ("torch_geometric", "GraphConv"): _read_graph_conv,
    ("torch_geometric", "GINConv"): _read_gin,
    ("torch_geometric", "GCNConv"): _read_gcn,
    ("torch_geometric", "TransformerConv"): _read_transformer,
    ("dgl", "RelGraphConv"): _read_rel_graph,
    ("dgl", "SAGEConv"): _read_dgl_sage,
    ("dgl", "GraphConv"): _read_dgl_graph_conv,
    ("dgl", "GATConv"): _read_dgl_gat,
    ("dgl", "HeteroGraphConv"): _read_dgl_hetero,
    ("dgl", "HGTConv"): _read_dgl_hgt,
}
