"""Weights of DGL's layers into ours."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from shorthaul.errors import LayerArgumentError
from shorthaul.relational.layers import DGLHGTConv, HGTConv, RelGraphConv, RGCNConv

# DGL's names of what a plain convolution has too; the rest of its layer is around it.
_RGCN_NAMES = {
    "linear_r.W": "weight",
    "linear_r.coeff": "comp",
    "loop_weight": "root",
    "h_bias": "bias",
}


def load_dgl_state_dict(layer: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copy the `state_dict` of DGL's `RelGraphConv` or `HGTConv` into a layer of ours.

    `RelGraphConv` and `DGLHGTConv` have DGL's own names. `RGCNConv` takes a `RelGraphConv` without
    layer norm; DGL adds messages up, so it is made with `aggr="add"`.

    >>> import torch, shorthaul as sh
    >>> state = {"linear_r.W": torch.ones(2, 8, 4), "h_bias": torch.ones(4)}
    >>> layer = sh.relational.RGCNConv(8, 4, 2, aggr="add", root_weight=False)
    >>> sh.relational.load_dgl_state_dict(layer, state)

    Args:
        layer: Receives the parameters.
        state: What DGL's `state_dict()` returned.
    """
    if isinstance(layer, HGTConv):
        raise LayerArgumentError(
            "HGTConv is PyG's formula, which has biases and an activation that DGL's has not",
            "make a DGLHGTConv",
        )
    if isinstance(layer, RGCNConv):
        if layer.aggr != "add":
            raise LayerArgumentError(
                f"DGL adds messages up, the layer takes aggr={layer.aggr!r}",
                "make it with aggr='add'",
            )
        renamed = {_RGCN_NAMES.get(name, name): value for name, value in state.items()}
        if layer.num_blocks is not None and "weight" in renamed:
            whole = renamed["weight"]
            if whole.numel() == layer.weight.numel():  # DGL keeps the blocks of a relation in a row
                renamed["weight"] = whole.view(layer.weight.shape)
        state = renamed
    elif not isinstance(layer, RelGraphConv | DGLHGTConv):
        raise LayerArgumentError(
            f"{type(layer).__name__} has no counterpart in DGL",
            "weights go to RGCNConv, RelGraphConv and DGLHGTConv",
        )
    _require_fit(layer, state)
    layer.load_state_dict(dict(state))


def _require_fit(layer: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    own = layer.state_dict()
    unknown = [name for name in state if name not in own]
    missing = [name for name in own if name not in state]
    if unknown or missing:
        told = [f"it has no place for {', '.join(unknown)}"] if unknown else []
        told += [f"{', '.join(missing)} would stay as they are"] if missing else []
        raise LayerArgumentError(
            f"the weights are not those of {type(layer).__name__}: {'; '.join(told)}",
            "make the layer with the options of DGL's",
        )
    for name, value in state.items():
        if value.shape != own[name].shape:
            raise LayerArgumentError(
                f"`{name}` has shape {tuple(value.shape)}, the layer's has "
                f"{tuple(own[name].shape)}",
                "make the layer with the widths and relations of DGL's",
            )
