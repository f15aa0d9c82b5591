"""The same convolutions on CUDA, by Triton."""
