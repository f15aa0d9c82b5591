"""Mini-batches over many ranks: the same ones whatever the number of ranks, rows fetched ahead and once."""
