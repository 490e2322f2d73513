"""A calibrated network and labeled batches for the sensitivity baseline."""

import bayesbits as bb
from tests.posttraining.networks import attached, examples


def pairs(count: int = 96) -> list:
    x, y = examples(count)
    return list(zip(x.split(40), y.split(40), strict=True))


def calibrated(spec: bb.Spec | None = None) -> bb.Compressor:
    compressor = attached(spec)
    compressor.calibrate([x for x, _ in pairs()], "mse")
    return compressor
