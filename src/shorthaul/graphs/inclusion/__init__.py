"""Which nodes batches will have, found from a graph whose edges are read in pieces."""
