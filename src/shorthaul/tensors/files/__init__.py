"""Where the rows of a table lie in a file, format by format."""
