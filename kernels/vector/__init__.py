"""Kernels of the vector unit that work on elements."""
