"""Graphs that are written and indexed as their edges stream past: larger than memory."""
