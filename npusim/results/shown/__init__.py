"""Reports of results, as data: one function each, from a result to a ``Report``."""
