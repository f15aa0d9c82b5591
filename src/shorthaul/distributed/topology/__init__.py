"""A topology that no rank has as a whole: each holds the rows of its own nodes, and draws for all."""
