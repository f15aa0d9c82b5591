"""A graph as a compiled layer sees it: how many rows each space has, where each way leads, and memory for the rows."""
