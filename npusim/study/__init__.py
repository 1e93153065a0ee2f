"""Studies: sweeps over designs, searches for the best, sensitivities, and playing with a device."""
