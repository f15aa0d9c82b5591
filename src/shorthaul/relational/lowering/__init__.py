"""From steps to kernels: which values get memory, and which kernel makes each."""
