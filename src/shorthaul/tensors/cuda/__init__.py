"""Rows in host memory, read by a CUDA device where they lie."""
