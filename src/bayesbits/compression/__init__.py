"""Compressing a live network: spec, attachment, calibration, penalties, and the compressor that holds them."""
