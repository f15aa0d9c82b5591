"""What keeps a training that runs within its memory: blocks computed again where that is faster, and what was chosen."""
