"""From a plan to numbers: kernels run on tensors, for autograd and for repeated calls."""
