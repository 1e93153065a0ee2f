"""Tilings of the vendor's libraries: read from their records, or worked out by their rules."""
