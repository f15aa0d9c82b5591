"""RGAT, trained as R-GCN is."""

from shorthaul.cli.acts.relational import play_attention as play

__all__ = ["play"]
