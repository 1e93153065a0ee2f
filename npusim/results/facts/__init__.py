"""Numbers of a result: metrics, bounds, energy, verdicts and comparisons."""
