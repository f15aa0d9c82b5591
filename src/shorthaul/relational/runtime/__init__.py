"""A compiled layer at work: arguments, autograd, operators."""
