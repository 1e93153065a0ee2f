"""Gradient of a convolution's filter on the cube unit."""
