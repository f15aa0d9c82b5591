"""DGL's two relational layers as plain PyTorch: same class paths, parameters and mathematics.

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


class GATConv(nn.Module):
    """A layer of DGL that shorthaul has not."""


TypedLinear.__module__ = "dgl.nn.pytorch.linear"
RelGraphConv.__module__ = "dgl.nn.pytorch.conv.relgraphconv"
HGTConv.__module__ = "dgl.nn.pytorch.conv.hgtconv"
GATConv.__module__ = "dgl.nn.pytorch.conv.gatconv"
