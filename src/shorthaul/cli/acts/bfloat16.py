"""The CNN of the act before, asked in bfloat16."""

from shorthaul.cli.acts.conv import ask as play

__all__ = ["play"]
