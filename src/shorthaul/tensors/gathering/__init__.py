"""Gathers that autograd records, and their gradients."""
