"""Conversions of layouts and types, copies and joins."""
