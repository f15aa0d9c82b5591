"""Generated kernels for rows in memory, and the same in plain torch."""
