"""What torch's operators do with a unified operand."""
