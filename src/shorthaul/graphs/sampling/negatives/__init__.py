"""Edges that are not there: what a model of links learns to tell from those that are."""
