"""Graphs that are cut for several machines."""
