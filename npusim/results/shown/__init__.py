"""What results say, as data: one function each, from a result to a ``Report``."""
