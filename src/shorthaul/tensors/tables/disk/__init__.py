"""Rows that lie in a file, read as they are asked for."""
