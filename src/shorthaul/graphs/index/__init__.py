"""The orders in which a graph's edges are read."""
