"""The drive: slots on it, what it is rated for, and what a large model would write."""
