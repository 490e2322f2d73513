"""How far float numbers may be off because onnxruntime computes a function in another way than torch.

The tolerance of float arithmetic is relative to the largest number. These functions are off by roundings of 1, or of
what multiplies them, also where all that they give is nearly 0.
"""

from __future__ import annotations

from onnx import NodeProto
from torch import Tensor

from bayesbits.deploy.verification.differences import UNIT_ROUNDOFF, largest
from bayesbits.deploy.verification.onnx_subgraphs import Subgraph

SIGMOIDS = frozenset(("Sigmoid", "QuickGelu"))
"""Operations of the runtime that compute a sigmoid; QuickGelu multiplies it with its input, as SiLU."""
LAST_SIGMOID = 18.0
"""The runtime's sigmoid is constant below minus this number, where it is nearly 0."""
SIGMOID_ROUNDINGS = 4
"""By how many roundings of 1 the runtime's sigmoid may be off: by 2.8 of those from -18 to 18."""
EXPONENTIAL_UNITS = {"Elu": (1.0, 1.0), "Celu": (1.0, 1.0), "Selu": (1.6732632, 1.050701)}
"""Activations that are an exponential function minus 1 below zero, with the alpha and gamma of nodes that have none."""
EXPONENTIAL_ROUNDINGS = 3
"""By how many roundings of gamma * alpha these may be off: the exponential function by one, and by half of one each
the quotient that it is taken of, the difference, the product of gamma and alpha and that with it. We found 1.7."""


def function_error(subgraph: Subgraph, exact: Tensor) -> float:
    """How far numbers may be off because the runtime computes functions in another way than torch."""
    return _sigmoid_error(subgraph, exact) + _exponential_error(subgraph, exact)


def _sigmoid_error(subgraph: Subgraph, exact: Tensor) -> float:
    """How far numbers may be off because the runtime's sigmoid is: by roundings of 1, also where it is nearly 0.

    It multiplies numbers that are as large as the largest one here, at which it is nearly 1. All of them may be small,
    such as the scores of a detector that finds nothing: then it is off by roundings of 1, and SiLU by 18 times as much.
    """
    kinds = {node.op_type for node in subgraph.nodes}
    if not kinds & SIGMOIDS:
        return 0.0
    least = LAST_SIGMOID if kinds & {"Mul", "QuickGelu"} else 1.0
    return SIGMOID_ROUNDINGS * UNIT_ROUNDOFF * max(least, largest(exact))


def _exponential_error(subgraph: Subgraph, exact: Tensor) -> float:
    """How far numbers may be off because the runtime takes 1 from an exponential function, where torch computes both at
    once: by roundings of what multiplies the difference, also where that is nearly 0. So it is with `torch.expm1`.

    They may be multiplied with others behind it, which are about as large as the largest number here.
    """
    scales = [_exponential_scale(node) for node in subgraph.nodes if node.op_type in EXPONENTIAL_UNITS]
    exponentials = {name for node in subgraph.nodes if node.op_type == "Exp" for name in node.output}
    scales += [1.0 for node in subgraph.nodes if node.op_type == "Sub" and node.input[0] in exponentials]
    return EXPONENTIAL_ROUNDINGS * UNIT_ROUNDOFF * max(scales, default=0.0) * max(1.0, largest(exact))


def _exponential_scale(node: NodeProto) -> float:
    """What multiplies the exponential function minus 1 in an activation of `EXPONENTIAL_UNITS`."""
    alpha, gamma = EXPONENTIAL_UNITS[node.op_type]
    given = {attribute.name: attribute.f for attribute in node.attribute}
    return float(abs(given.get("alpha", alpha) * given.get("gamma", gamma)))
