"""Convolution and its input gradient as one product whose rows are gathered from the image."""
