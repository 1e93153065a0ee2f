"""Tilings of a call: how they are written, chosen, ranked, searched and proved."""
