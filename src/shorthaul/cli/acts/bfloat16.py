"""The CNN of the act before, run for inference in bfloat16."""

from shorthaul.cli.acts.conv import infer as play

__all__ = ["play"]
