"""Host memory: advice to the kernel, sharing between processes, buffers that are used again."""
