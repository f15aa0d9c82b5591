"""The memory of a process's tensors on the CPU: where it comes from, and where it goes when they are freed."""

from shorthaul.allocator.tensor_pool import PoolFacts, TensorPool

__all__ = ["PoolFacts", "TensorPool"]
