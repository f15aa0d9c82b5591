"""What the demo is made of: acts, and the report on them."""
