"""Samples of a number of nodes of each type, drawn by what they mean to those that are there (HGT)."""
