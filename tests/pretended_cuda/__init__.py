"""A machine with two CUDA devices, pretended: memory is the host's, and the CPU computes.

Programs that start with `pretended_cuda.start()`, before PyTorch is imported, find `cuda:0` and
`cuda:1`. Tensors there have addresses and gradients; operators refuse tensors of two devices, as CUDA
does; each thread has a current device; Triton kernels are interpreted, and a launch whose tensors do
not lie on the current device is an error, which on a GPU would be an illegal access or wrong numbers.
"""
