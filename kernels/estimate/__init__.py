"""Estimated and least cycles of a tiling, without building its program."""
