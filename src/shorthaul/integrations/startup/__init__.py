"""What Python runs before an unedited script: a folder for the front of its path, one module in it."""
