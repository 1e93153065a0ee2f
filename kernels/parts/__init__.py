"""Pieces of loop nests that several kernels share."""
