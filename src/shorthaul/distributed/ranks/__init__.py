"""Who takes part, who shares a machine, and how what one says reaches the others or an error names who is to blame."""
