"""Rules of what a network computes: the table of kinds, and a step derived from a graph."""
