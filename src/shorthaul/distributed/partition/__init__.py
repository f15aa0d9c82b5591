"""A graph and its features, cut into parts: who owns which node, and the files of each part."""
