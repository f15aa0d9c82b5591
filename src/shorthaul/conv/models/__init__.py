"""Models: layers replaced, batch norms folded, weights quantised."""
