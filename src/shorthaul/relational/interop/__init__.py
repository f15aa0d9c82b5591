"""Layers and weights of PyG and DGL."""
