"""Gradients of convolutions on the DSPs: im2row and a product, for shared and private storage."""
