"""Which saved tensors leave, which stay, which are computed again."""
