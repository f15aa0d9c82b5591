"""How a layer became kernels, in words and as a picture."""
