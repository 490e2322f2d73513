"""Ranges from data, and the ways to look at a running network without changing it."""

from bayesbits.calibration.calibrate import calibrate_activations, calibrate_weight
from bayesbits.calibration.observing import run_on
from bayesbits.calibration.ranges import METHODS

__all__ = ["METHODS", "calibrate_activations", "calibrate_weight", "run_on"]
