"""Calibration: the figures of a device, fitted to measurements of a chip by whoever owns it."""
