"""Figures as data: one function each, from a result to a ``Figure``."""
