"""Matrix products on the cube unit."""
