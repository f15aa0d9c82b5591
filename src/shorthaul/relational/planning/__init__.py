"""What a plan's kernels cost on a graph, and what to keep for the backward pass."""
