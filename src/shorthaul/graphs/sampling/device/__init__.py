"""Samples drawn on a CUDA device from a graph in mapped host memory: the same as the CPU's."""
