"""Points of a front: read from a live network, and made its final decision again."""

import torch

from bayesbits.compression.compressor import Compressor, check_compressor, check_gated
from bayesbits.nn import Quantizer
from bayesbits.posttraining.quantizer_state import forget_sweep
from bayesbits.records.front import Point, Range
from bayesbits.records.plan import Plan


def read_point(
    compressor: Compressor, plan: Plan | None = None, *, score: float | None = None, mu: float | None = None
) -> Point:
    """A point with the present ranges and a plan; without a plan, that which the gates decide on."""
    plan = compressor.plan() if plan is None else plan
    ranges = {name: read_range(quantizer) for name, quantizer in compressor.attachment.quantizers.items()}
    return Point(plan, compressor.cost(plan).relative_bops, ranges, score, mu)


def read_range(quantizer: Quantizer) -> Range:
    """The present range of a quantizer."""
    ends = [end.detach().flatten().tolist() for end in quantizer.range_parameters()]
    log_beta, *lower = ends or [[]]  # a tensor that is quantized at run time has no range to keep
    return Range(tuple(log_beta), quantizer.signed, lower[0][0] if lower else None)


@torch.no_grad()
def put_range(quantizer: Quantizer, own: Range) -> None:
    """Give a quantizer a range that `read_range` has read."""
    quantizer.set_kind(own.kind)
    ends = [own.log_beta] if own.log_alpha is None else [own.log_beta, (own.log_alpha,)]
    ends = ends if own.log_beta else []
    for parameter, end in zip(quantizer.range_parameters(), ends, strict=True):
        parameter.copy_(parameter.new_tensor(end).reshape(parameter.shape))


def restore(compressor: Compressor, point: Point) -> None:
    """Make a point of a front the final decision: set its ranges, and fix its plan.

    Args:
        compressor: The compressor that the front was made with, or one of a network with the same weights and the same
            spec.
        point: One of `front.points`, or `front.within(relative_bops)`.

    Raises:
        TypeError: These are no compressor and no point.
        ValueError: The point was made with another network or spec.

    Example::

        >>> import torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), torch.zeros(1, 4), bb.Spec(bits=(4, 8)))
        >>> config = bb.PosttrainConfig(mus=(0.001, 0.1), steps=2, loss="output")
        >>> front = bb.posttrain(compressor, torch.randn(64, 4).split(32), config=config)
        >>> bb.restore(compressor, front.points[0])
        >>> compressor.plan() == front.points[0].plan
        True
    """
    check_compressor(compressor, "restore")
    check_gated(compressor, "restore")
    if not isinstance(point, Point):
        raise TypeError(
            f"restore takes one Point of a Front, and this is a {type(point).__name__}: pass front.points[0], or "
            "front.within(relative_bops) for the best point within a cost"
        )
    quantizers = compressor.attachment.quantizers
    for name, quantizer in quantizers.items():
        if name not in point.ranges:
            raise ValueError(f"the point has no range for {name!r}; it was made with another network or spec")
        if len(point.ranges[name].log_beta) != quantizer.range_shape.numel():
            raise ValueError(
                f"the point has {len(point.ranges[name].log_beta)} ranges for {name!r}, whose quantizer has "
                f"{quantizer.range_shape.numel()}; it was made with another network or spec"
            )
        if point.ranges[name].log_alpha is not None and not quantizer.may_be_asymmetric:
            raise ValueError(
                f"the point has an asymmetric range for {name!r}, whose quantizer cannot have one: attach with "
                "Spec(asymmetric_activations=True)"
            )
    compressor.fix(point.plan)
    for name, quantizer in quantizers.items():
        put_range(quantizer, point.ranges[name])
    compressor.attachment.calibrated = True
    forget_sweep(compressor.attachment)
