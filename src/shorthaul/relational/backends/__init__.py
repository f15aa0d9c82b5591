"""How a program is run: `reference` by PyTorch, `cpp` by generated C++, `triton` by Triton kernels."""
