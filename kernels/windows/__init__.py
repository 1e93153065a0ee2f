"""Windows of an image: im2col, its gradient, and pooling."""
