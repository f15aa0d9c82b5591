"""Which neighbors may be taken: by time, by weight, without those that are left out."""
