"""Seeds in, compact blocks out."""
