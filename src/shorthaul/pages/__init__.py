"""A page of a run or of the demo: one HTML file with charts and tables that needs nothing else."""
