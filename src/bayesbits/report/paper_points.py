"""Points of the paper and of later work, for the recipes that repeat its experiments: accuracy over cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperPoint:
    """A published result."""

    method: str
    relative_bops: float
    """In percent of those at 32 x 32 bits, as published."""
    accuracy: float
    """In percent."""
    errors: tuple[float, float] | None = None
    """The standard errors of accuracy and relative bit operations, where they are published."""


PAPER = "the paper"
OTHERS = "other work"

FLOAT = {"mnist-lenet5": 99.36, "cifar10-vgg7": 93.05, "imagenet-resnet18": 69.68}
"""The accuracy of the float network in the paper's tables."""

POINTS: dict[str, dict[str, tuple[PaperPoint, ...]]] = {
    "mnist-lenet5": {
        PAPER: (PaperPoint("Bayesian Bits, mu 0.01", 0.36, 99.30, (0.03, 0.01)),),
        OTHERS: (
            PaperPoint("TWN 2/32", 5.74, 99.35),
            PaperPoint("LR-Net 1/32", 2.99, 99.47),
            PaperPoint("RQ 2/8", 0.52, 99.37),
            PaperPoint("WAGE 2/8", 1.56, 99.60),
        ),
    },
    "cifar10-vgg7": {
        PAPER: (
            PaperPoint("Bayesian Bits, mu 0.1", 0.29, 91.96, (0.04, 0.00)),
            PaperPoint("Bayesian Bits, deterministic gates, mu 0.01", 0.42, 92.82),
            PaperPoint("Bayesian Bits, mu 0.01", 0.51, 93.23, (0.10, 0.03)),
        ),
        OTHERS: (
            PaperPoint("TWN 2/32", 6.22, 92.56),
            PaperPoint("LR-Net 1/32", 3.11, 93.18),
            PaperPoint("RQ 8/8", 6.25, 93.80),
            PaperPoint("RQ 4/4", 1.56, 92.04),
            PaperPoint("WAGE 2/8", 1.56, 93.22),
            PaperPoint("DQ", 0.48, 91.59),
            PaperPoint("DQ, restricted", 0.54, 91.59),
            PaperPoint("GETA (2025)", 0.41, 92.57),
        ),
    },
    "imagenet-resnet18": {
        PAPER: (
            PaperPoint("Bayesian Bits, mu 0.2", 0.68, 63.76),
            PaperPoint("Bayesian Bits, mu 0.07", 1.06, 66.81),
            PaperPoint("Bayesian Bits, mu 0.05", 1.44, 68.21),
            PaperPoint("Bayesian Bits, mu 0.03", 1.93, 69.39),
            PaperPoint("Bayesian Bits, mu 0.01", 2.85, 69.84),
        ),
        OTHERS: (
            PaperPoint("QT 8/8", 6.25, 70.38),
            PaperPoint("TWN 2/32", 5.95, 61.80),
            PaperPoint("RQ 5/5", 2.54, 65.10),
            PaperPoint("PACT 4/4", 3.12, 69.20),
            PaperPoint("LSQ 8/8", 6.25, 70.48),
            PaperPoint("LSQ 4/8", 3.13, 69.70),
            PaperPoint("LSQ 4/4", 1.56, 68.38),
            PaperPoint("DQ", 2.10, 68.40),
            PaperPoint("DQ, restricted", 3.09, 68.40),
        ),
    },
}
