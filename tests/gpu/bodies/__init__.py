"""What must hold on every CUDA device, with the CPU as oracle: a module for each part, a function for each promise.

They run on a real device under `make test-gpu`, and on pretended ones in `make test`, so that they are
known to be right themselves. Storage has no device version: disks are read by the CPU.
"""
