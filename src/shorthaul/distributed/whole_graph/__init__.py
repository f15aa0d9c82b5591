"""Layers on the whole graph, each rank for the targets that it owns: sources are exchanged once per layer."""
