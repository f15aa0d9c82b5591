"""Mini-batches, sampled and gathered while the model trains."""
