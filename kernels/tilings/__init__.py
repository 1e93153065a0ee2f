"""Which tile sizes: heuristics, and the vendor library's record and rules."""
