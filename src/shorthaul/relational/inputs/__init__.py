"""What users hand to a ready layer, made into a graph and typed features."""
