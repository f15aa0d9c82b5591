"""Tensors on a GPU on their way to pinned memory and back."""
