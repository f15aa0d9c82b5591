"""Unified tensors: rows read where they lie, in memory or on disk, by CPU or GPU."""
