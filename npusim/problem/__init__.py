"""Shapes of convolutions: one axis, one convolution, and its float64 definition."""
