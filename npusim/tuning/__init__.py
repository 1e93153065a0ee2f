"""The search for the fastest tiling of a kernel, with a proof that no other one is faster."""
