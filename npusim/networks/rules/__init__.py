"""What the operations of a network compute: the table of kinds, and a step derived from a graph."""
