"""What the demo is made of: acts, the processes that they are played in, and the report on them."""
