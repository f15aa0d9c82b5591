"""Models: layers replaced, batch norms folded, weights quantized."""
