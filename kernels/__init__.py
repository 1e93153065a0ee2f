"""The kernels npusim ships, one file each, readable as their loop nests."""
