"""Numbers: a program executed on arrays, with the arithmetic of the chip."""
