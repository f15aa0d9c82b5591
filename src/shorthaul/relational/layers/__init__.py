"""Layers that people use, written in the language, with PyG's and DGL's constructors and names."""

from shorthaul.relational.inputs.traced import register_builders
from shorthaul.relational.layers.compgcn import CompGCNConv
from shorthaul.relational.layers.dgl_hgt import DGLHGTConv
from shorthaul.relational.layers.han import HANConv
from shorthaul.relational.layers.heterogeneous.hetero import HeteroConv
from shorthaul.relational.layers.hgt import HGTConv
from shorthaul.relational.layers.homogeneous.gat import GATConv
from shorthaul.relational.layers.homogeneous.gatv2 import GATv2Conv
from shorthaul.relational.layers.homogeneous.gcn import GCNConv
from shorthaul.relational.layers.homogeneous.gin import GINConv
from shorthaul.relational.layers.homogeneous.graph_conv import GraphConv
from shorthaul.relational.layers.homogeneous.sage import SAGEConv
from shorthaul.relational.layers.homogeneous.transformer import TransformerConv
from shorthaul.relational.layers.of_dgl.gat import DGLGATConv
from shorthaul.relational.layers.of_dgl.graph_conv import DGLGraphConv
from shorthaul.relational.layers.of_dgl.hetero import DGLHeteroGraphConv
from shorthaul.relational.layers.of_dgl.sage import DGLSAGEConv
from shorthaul.relational.layers.rel_graph import RelGraphConv
from shorthaul.relational.layers.rgat import RGATConv
from shorthaul.relational.layers.rgcn import RGCNConv
from shorthaul.relational.layers.simple_hgn import SimpleHGN

__all__ = [
    "CompGCNConv",
    "DGLGATConv",
    "DGLGraphConv",
    "DGLHGTConv",
    "DGLHeteroGraphConv",
    "DGLSAGEConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GraphConv",
    "HANConv",
    "HGTConv",
    "HeteroConv",
    "RGATConv",
    "RGCNConv",
    "RelGraphConv",
    "SAGEConv",
    "SimpleHGN",
    "TransformerConv",
]

register_builders()
