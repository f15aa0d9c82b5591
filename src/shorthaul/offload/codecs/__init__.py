"""Bytes of an activation: copied, checked, made fewer and made whole again."""
