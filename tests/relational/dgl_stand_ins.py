"""DGL's layers as plain PyTorch: same class paths, parameters and mathematics.

DGL itself is asked in `peer_checks.py`, where it is installed; these say the same thing everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import nn


class PlainGraph:
    """As much of a DGL graph or block as layers ask for."""

    canonical_etypes, ntypes = (("_N", "_E", "_N"),), ("_N",)

    def __init__(self, edge_index, num_nodes, num_targets=None):
        self.is_block = num_targets is not None
        self._graph = object()
        self._edges = edge_index
        self._counts = num_nodes, num_nodes if num_targets is None else num_targets

    def edges(self, order="eid"):
        return tuple(self._edges.clone())

    def num_src_nodes(self):
        return self._counts[0]

    def num_dst_nodes(self):
        return self._counts[1]


class TypedLinear(nn.Module):
    def __init__(self, in_size, out_size, num_types, regularizer=None, num_bases=None):
        super().__init__()
        self.in_size, self.out_size, self.num_types = in_size, out_size, num_types
        self.regularizer, self.num_bases = regularizer, num_bases
        if regularizer == "basis":
            self.W = nn.Parameter(torch.randn(num_bases, in_size, out_size))
            self.coeff = nn.Parameter(torch.randn(num_types, num_bases))
        elif regularizer == "bdd":
            self.W = nn.Parameter(torch.randn(num_types, in_size * out_size // num_bases))
        else:
            self.W = nn.Parameter(torch.randn(num_types, in_size, out_size) * 0.3)

    def forward(self, x, kinds):
        if self.regularizer == "bdd":
            inner, outer = self.in_size // self.num_bases, self.out_size // self.num_bases
            blocks = self.W[kinds].view(-1, inner, outer)
            return torch.bmm(x.reshape(-1, 1, inner), blocks).view(-1, self.out_size)
        whole = self.W
        if self.regularizer == "basis":
            whole = torch.einsum("tb,bio->tio", self.coeff, self.W)
        return torch.bmm(x.unsqueeze(1), whole[kinds]).squeeze(1)


class RelGraphConv(nn.Module):
    def __init__(
        self, in_feat, out_feat, num_rels, regularizer=None, num_bases=None, bias=True,
        activation=None, self_loop=True, dropout=0.0, layer_norm=False,
    ):  # fmt: skip
        super().__init__()
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases)
        self.bias, self.activation = bias, activation
        self.self_loop, self.layer_norm = self_loop, layer_norm
        if bias:
            self.h_bias = nn.Parameter(torch.randn(out_feat))
        if layer_norm:
            self.layer_norm_weight = nn.LayerNorm(out_feat)
        if self_loop:
            self.loop_weight = nn.Parameter(torch.randn(in_feat, out_feat))
        self.dropout = nn.Dropout(dropout)

    def forward(self, g, feat, etypes, norm=None, *, presorted=False):
        source, target = g.edges()
        message = self.linear_r(feat[source], etypes)
        message = message if norm is None else message * norm
        h = message.new_zeros(g.num_dst_nodes(), message.shape[1]).index_add(0, target, message)
        h = self.layer_norm_weight(h) if self.layer_norm else h
        h = h + self.h_bias if self.bias else h
        h = h + feat[: g.num_dst_nodes()] @ self.loop_weight if self.self_loop else h
        return self.dropout(self.activation(h) if self.activation else h)


class HGTConv(nn.Module):
    def __init__(
        self, in_size, head_size, num_heads, num_ntypes, num_etypes, dropout=0.2, use_norm=False
    ):
        super().__init__()
        wide = head_size * num_heads
        self.in_size, self.head_size, self.num_heads = in_size, head_size, num_heads
        self.use_norm = use_norm
        for name in "kqv":
            setattr(self, f"linear_{name}", TypedLinear(in_size, wide, num_ntypes))
        self.linear_a = TypedLinear(wide, wide, num_ntypes)
        self.relation_pri = nn.ParameterList(
            [nn.Parameter(torch.rand(num_etypes)) for _ in range(num_heads)]
        )
        for name in ("att", "msg"):
            maps = [TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads)]
            setattr(self, f"relation_{name}", nn.ModuleList(maps))
        self.skip = nn.Parameter(torch.randn(num_ntypes))
        self.drop = nn.Dropout(dropout)
        if use_norm:
            self.norm = nn.LayerNorm(wide)
        if in_size != wide:
            self.residual_w = nn.Parameter(torch.randn(in_size, wide))

    def forward(self, g, x, ntype, etype, *, presorted=False):
        source, target = g.edges()
        count, heads = g.num_dst_nodes(), (-1, self.num_heads, self.head_size)
        own, kinds = x[:count], ntype[:count]
        k = self.linear_k(x, ntype).view(heads)[source]
        q = self.linear_q(own, kinds).view(heads)[target]
        v = self.linear_v(x, ntype).view(heads)[source]
        heard = []
        for head in range(self.num_heads):
            agreed = (self.relation_att[head](k[:, head], etype) * q[:, head]).sum(-1)
            power = (agreed * self.relation_pri[head][etype] / math.sqrt(self.head_size)).exp()
            total = power.new_zeros(count).index_add(0, target, power)[target]
            told = self.relation_msg[head](v[:, head], etype) * (power / total).unsqueeze(1)
            heard.append(told.new_zeros(count, self.head_size).index_add(0, target, told))
        h = self.drop(self.linear_a(torch.cat(heard, 1), kinds))
        share = self.skip[kinds].sigmoid().unsqueeze(1)
        own = own @ self.residual_w if own.shape != h.shape else own
        h = h * share + own * (1 - share)
        return self.norm(h) if self.use_norm else h


class RelationGraph(PlainGraph):
    """One relation of a graph of many types: its two sides are numbered apart."""

    def __init__(self, edge_index, num_sources, num_targets):
        super().__init__(edge_index, num_sources)
        self._counts = num_sources, num_targets


class PlainHeteroGraph:
    """As much of a DGL graph of several types as `HeteroGraphConv` and layers ask for."""

    def __init__(self, edges, counts, targets=None):
        self.is_block = targets is not None
        self.canonical_etypes, self.dsttypes = list(edges), list(counts)
        self.asked = []  # for which edges
        self._graph = object()
        self._edges, self._counts, self._targets = edges, counts, targets or counts

    def edges(self, order="eid", etype=None):
        self.asked.append(etype)
        return tuple(self._edges[etype].clone())

    def num_dst_nodes(self, kind):
        return self._targets[kind]

    def __getitem__(self, relation):
        source, _, target = relation
        counts = self._counts[source], self._targets[target]
        return RelationGraph(self._edges[relation], *counts)


def _read_sides(graph, feat):
    return feat if isinstance(feat, tuple) else (feat, feat[: graph.num_dst_nodes()])


def _sum_over(graph, message):
    count = graph.num_dst_nodes()
    zeros = message.new_zeros(count, *message.shape[1:])
    return zeros.index_add(0, graph.edges()[1], message)


def _count_over(nodes, count, like):
    return torch.bincount(nodes, minlength=count).clamp(min=1).to(like).unsqueeze(1)


class SAGEConv(nn.Module):
    def __init__(
        self, in_feats, out_feats, aggregator_type, feat_drop=0.0, bias=True, norm=None,
        activation=None,
    ):  # fmt: skip
        super().__init__()
        pair = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._in_src_feats, self._in_dst_feats = pair
        self._out_feats, self._aggre_type = out_feats, aggregator_type
        self.norm, self.activation = norm, activation
        self.feat_drop = nn.Dropout(feat_drop)
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(pair[0], pair[0])
        self.fc_neigh = nn.Linear(pair[0], out_feats, bias=False)
        if aggregator_type != "gcn":
            self.fc_self = nn.Linear(pair[1], out_feats, bias=bias)

    def forward(self, graph, feat, edge_weight=None):
        x, own = _read_sides(graph, feat)
        source, target = graph.edges()
        message = (self.fc_pool(x).relu() if self._aggre_type == "pool" else x)[source]
        message = message if edge_weight is None else message * edge_weight.unsqueeze(1)
        if self._aggre_type == "mean":
            heard = _sum_over(graph, message) / _count_over(target, graph.num_dst_nodes(), x)
        else:
            zeros = message.new_zeros(graph.num_dst_nodes(), message.shape[1])
            heard = zeros.scatter_reduce(
                0, target[:, None].expand_as(message), message, "amax", include_self=False
            )
        h = self.fc_self(own) + self.fc_neigh(heard)
        h = self.activation(h) if self.activation is not None else h
        return self.norm(h) if self.norm is not None else h


class GraphConv(nn.Module):
    def __init__(
        self, in_feats, out_feats, norm="both", weight=True, bias=True, activation=None,
        allow_zero_in_degree=False,
    ):  # fmt: skip
        super().__init__()
        self._in_feats, self._out_feats, self._norm = in_feats, out_feats, norm
        self._activation, self._allow_zero_in_degree = activation, allow_zero_in_degree
        self.weight = nn.Parameter(torch.randn(in_feats, out_feats)) if weight else None
        self.bias = nn.Parameter(torch.randn(out_feats)) if bias else None

    def set_allow_zero_in_degree(self, set_value):
        self._allow_zero_in_degree = set_value

    def forward(self, graph, feat, weight=None, edge_weight=None):
        x, _ = _read_sides(graph, feat)
        source, target = graph.edges()
        power = -0.5 if self._norm == "both" else -1.0
        if self._norm in ("left", "both"):
            x = x * _count_over(source, len(x), x) ** power
        message = x[source] if edge_weight is None else x[source] * edge_weight.unsqueeze(1)
        h = _sum_over(graph, message) @ self.weight
        if self._norm in ("right", "both"):
            h = h * _count_over(target, graph.num_dst_nodes(), x) ** power
        h = h if self.bias is None else h + self.bias
        return h if self._activation is None else self._activation(h)


class GATConv(nn.Module):
    def __init__(
        self, in_feats, out_feats, num_heads, feat_drop=0.0, attn_drop=0.0, negative_slope=0.2,
        residual=False, activation=None, allow_zero_in_degree=False, bias=True,
    ):  # fmt: skip
        super().__init__()
        pair = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        self._in_src_feats, self._in_dst_feats = pair
        self._out_feats, self._num_heads = out_feats, num_heads
        self._allow_zero_in_degree, wide = allow_zero_in_degree, out_feats * num_heads
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(pair[0], wide, bias=False)
            self.fc_dst = nn.Linear(pair[1], wide, bias=False)
        else:
            self.fc = nn.Linear(in_feats, wide, bias=False)
        self.attn_l = nn.Parameter(torch.randn(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.randn(1, num_heads, out_feats))
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)
        self.leaky_relu, self.activation = nn.LeakyReLU(negative_slope), activation
        is_mapped = residual and pair[1] != wide
        self.has_explicit_bias = bias and not is_mapped
        if is_mapped:
            self.res_fc = nn.Linear(pair[1], wide, bias=bias)
        elif residual:
            self.res_fc = nn.Identity()
        else:
            self.register_buffer("res_fc", None)
        if self.has_explicit_bias:
            self.bias = nn.Parameter(torch.randn(wide))
        else:
            self.register_buffer("bias", None)

    def set_allow_zero_in_degree(self, set_value):
        self._allow_zero_in_degree = set_value

    def forward(self, graph, feat, edge_weight=None, get_attention=False):
        x, own = _read_sides(graph, feat)
        source, target = graph.edges()
        heads = (-1, self._num_heads, self._out_feats)
        one, other = (self.fc, self.fc) if hasattr(self, "fc") else (self.fc_src, self.fc_dst)
        value, asking = one(x).view(heads), other(own).view(heads)
        met = (value * self.attn_l).sum(-1)[source] + (asking * self.attn_r).sum(-1)[target]
        power = self.leaky_relu(met).exp()
        share = (power / _sum_over(graph, power)[target]).unsqueeze(-1)
        share = share if edge_weight is None else share * edge_weight.view(-1, 1, 1)
        h = _sum_over(graph, value[source] * share)
        if self.res_fc is not None:
            h = h + self.res_fc(own).view(len(own), -1, self._out_feats)
        h = h if self.bias is None else h + self.bias.view(1, *heads[1:])
        h = h if self.activation is None else self.activation(h)
        return (h, share) if get_attention else h


class HeteroGraphConv(nn.Module):
    def __init__(self, mods, aggregate="sum"):
        super().__init__()
        self.mod_dict = mods
        self.mods = nn.ModuleDict({str(name): each for name, each in mods.items()})
        for each in self.mods.values():
            getattr(each, "set_allow_zero_in_degree", lambda _: None)(True)
        self.agg_fn = lambda found, kind: getattr(torch.stack(found), aggregate)(0)

    def forward(self, g, inputs, mod_args=None, mod_kwargs=None):
        sources, targets = inputs if isinstance(inputs, tuple) else (inputs, inputs)
        if g.is_block and not isinstance(inputs, tuple):
            targets = {name: rows[: g.num_dst_nodes(name)] for name, rows in inputs.items()}
        found = {kind: [] for kind in g.dsttypes}
        for relation in g.canonical_etypes:
            layer = self.mod_dict.get(relation) or self.mod_dict[relation[1]]
            given = sources[relation[0]], targets[relation[2]]
            more = (mod_kwargs or {}).get(relation[1], {})
            found[relation[2]].append(layer(g[relation], given, **more))
        return {name: self.agg_fn(each, name) for name, each in found.items() if each}


class TAGConv(nn.Module):
    """A layer of DGL that shorthaul has not."""


TypedLinear.__module__ = "dgl.nn.pytorch.linear"
RelGraphConv.__module__ = "dgl.nn.pytorch.conv.relgraphconv"
HGTConv.__module__ = "dgl.nn.pytorch.conv.hgtconv"
for _layer in (SAGEConv, GraphConv, GATConv, TAGConv):
    _layer.__module__ = f"dgl.nn.pytorch.conv.{_layer.__name__.lower()}"
HeteroGraphConv.__module__ = "dgl.nn.pytorch.hetero"
