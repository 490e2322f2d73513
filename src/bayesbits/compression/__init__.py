"""Compressing a live network: spec, attachment, calibration, penalties, plans, and the compressor, their handle."""
