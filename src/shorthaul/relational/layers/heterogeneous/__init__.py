"""Layers with a layer for each relation, whose relations are computed together."""
