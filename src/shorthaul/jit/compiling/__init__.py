"""Kernels compiled while the program goes on: several at a time, and in the background."""
