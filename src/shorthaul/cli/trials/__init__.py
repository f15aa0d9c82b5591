"""What doctor and demo try out: a sample kernel, peak rates, round trips to the disk."""
