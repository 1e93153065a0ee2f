"""A step as it runs: kernels of operations, their times, and their numbers."""
