"""Calibration: the figures of a device, fitted to measurements of a chip by whoever owns it."""

from npusim.calibration.calibrate import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
