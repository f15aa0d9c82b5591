"""A compiler for relational graph neural networks.

A layer is a Python function over symbolic nodes and edges (`language`), recorded once (`trace`) as a
program (`ir`), improved by passes (`passes`), differentiated in the same form (`differentiate`), cut
into kernels (`lowering`) and written as C++ (`backends`).
"""

from shorthaul.graphs import RelationalGraph
from shorthaul.relational.compiled_layer import CompiledLayer, layer
from shorthaul.relational.frontend.declarations import EdgeFeature, NodeFeature, Weight
from shorthaul.relational.frontend.language import (
    absolute,
    broadcast,
    concat,
    dot,
    dropout,
    elu,
    exp,
    gelu,
    layer_norm,
    leaky_relu,
    linear,
    log,
    outer,
    positive,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    sqrt,
    tanh,
    total,
)
from shorthaul.relational.interop.accelerate import AccelerationReport, accelerate
from shorthaul.relational.interop.dgl_state import load_dgl_state_dict
from shorthaul.relational.layers import (
    CompGCNConv,
    DGLHGTConv,
    GATv2Conv,
    HANConv,
    HGTConv,
    RelGraphConv,
    RGATConv,
    RGCNConv,
    SAGEConv,
    SimpleHGN,
)
from shorthaul.relational.planning.estimate import Machine

__all__ = [
    "AccelerationReport",
    "CompGCNConv",
    "CompiledLayer",
    "DGLHGTConv",
    "EdgeFeature",
    "GATv2Conv",
    "HANConv",
    "HGTConv",
    "Machine",
    "NodeFeature",
    "RGATConv",
    "RGCNConv",
    "RelGraphConv",
    "RelationalGraph",
    "SAGEConv",
    "SimpleHGN",
    "Weight",
    "absolute",
    "accelerate",
    "broadcast",
    "concat",
    "dot",
    "dropout",
    "elu",
    "exp",
    "gelu",
    "layer",
    "layer_norm",
    "leaky_relu",
    "linear",
    "load_dgl_state_dict",
    "log",
    "outer",
    "positive",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "sqrt",
    "tanh",
    "total",
]
