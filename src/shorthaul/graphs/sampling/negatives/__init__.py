"""Edges that do not exist: what a model of links learns to tell from those that do."""
