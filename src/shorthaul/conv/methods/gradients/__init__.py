"""Gradients of the weights, which are methods as well, and of the bias."""
