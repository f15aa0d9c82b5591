"""Layers of one relation; sources may be apart from targets."""
