"""Graphs of any size whose degrees follow a power law, made by rule and not by chance."""
