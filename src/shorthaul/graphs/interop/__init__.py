"""Graphs and features from and to PyG and DGL."""
