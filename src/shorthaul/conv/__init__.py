"""Window-order convolution: problem -> schedule -> emit -> kernel."""
