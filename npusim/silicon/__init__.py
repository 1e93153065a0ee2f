"""Measured points of real chips, their simulation, and how far the two lie apart."""
