"""Points of a front, read from a network and put into it again."""

import torch

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.posttraining.starting import forget
from bayesbits.records.front import Point, Range
from bayesbits.records.plan import Plan


def read_point(
    compressor: Compressor, plan: Plan | None = None, *, score: float | None = None, mu: float | None = None
) -> Point:
    """The present ranges with a plan, without one the present decision."""
    plan = compressor.plan() if plan is None else plan
    ranges = {
        name: Range(tuple(quantizer.log_beta.detach().flatten().tolist()), quantizer.signed)
        for name, quantizer in compressor.attachment.quantizers.items()
    }
    return Point(plan, compressor.cost(plan).relative_bops, ranges, score, mu)


def restore(compressor: Compressor, point: Point) -> None:
    """Make a point of a front the final decision: its ranges, and `fix` with its plan.

    The network is the one that the front was made with, or another with the same weights and the same spec.
    """
    check_compressor(compressor, "restore")
    if not isinstance(point, Point):
        raise TypeError(
            f"restore takes one Point of a Front, and this is a {type(point).__name__}: pass front.points[0], or "
            "front.within(relative_bops) for the best that costs at most so much"
        )
    quantizers = compressor.attachment.quantizers
    for name, quantizer in quantizers.items():
        if name not in point.ranges:
            raise ValueError(f"the point has no range for {name!r}; it was made with another network or spec")
        if len(point.ranges[name].log_beta) != quantizer.log_beta.numel():
            raise ValueError(
                f"the point has {len(point.ranges[name].log_beta)} ranges for {name!r}, whose quantizer has "
                f"{quantizer.log_beta.numel()}; it was made with another network or spec"
            )
    compressor.fix(point.plan)
    for name, quantizer in quantizers.items():
        with torch.no_grad():
            values = quantizer.log_beta.new_tensor(point.ranges[name].log_beta)
            quantizer.log_beta.copy_(values.reshape(quantizer.log_beta.shape))
        quantizer.signed = point.ranges[name].signed
    compressor.attachment.calibrated = True
    forget(compressor.attachment)  # a sweep behind this starts from the point's ranges
