"""Records on their way out of memory and back, within a budget."""
