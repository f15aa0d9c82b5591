"""What autograd saved: its identity, its record, and the step around it."""
