"""Adaptive rounding (AdaRound): which weights are rounded up and which down is learned, on top of any plan.

Rounding every weight to its nearest code is best for each weight alone, but not for the layer, whose inputs add the
errors of many weights up: they should cancel. Layer after layer, in running order, the choice between the code below
and the code above is learned so that the layer's output comes close to that of the float network. `adaround_rounding`
has the mathematics of the choice. It is reconstruction with every layer as a unit of its own: `reconstruction_run` goes
from unit to unit, and `reconstruction_learning` learns one. Each weight is then set to the center of its learned code,
so that the quantizer's ordinary rounding finds this code.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from bayesbits.baselines.adaround_rounding import AdaRoundConfig
from bayesbits.baselines.layerwise import Progress
from bayesbits.baselines.reconstruction_run import Settings, reconstruct_network
from bayesbits.baselines.rounding_report import RoundingReport
from bayesbits.compression.compressor import Compressor


def adaround(
    compressor: Compressor,
    batches: Iterable[Any],
    config: AdaRoundConfig | None = None,
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> RoundingReport:
    """Learn for every weight of a network with a fixed plan whether it is rounded up or down.

    Weights change by at most one code each, and with them their ranges and the biases (`AdaRoundConfig.range_lr` and
    `bias_lr`); nothing else does. A layer stays as it was where what was learned is not better on the data. Where the
    call fails, everything is restored.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        batches: Batches of inputs, as for `Compressor.calibrate`. All of them are held in memory.
        config: The options; by default `AdaRoundConfig()`.
        reference: The float network whose outputs are approximated. By default it is this network without its
            quantizers. Where weights were rounded or biases corrected since, a copy made before is needed.
        progress: A function that is called with a layer's name, its number and the number of layers.

    Returns:
        The errors of every layer before and after, and the layers that were skipped.

    Raises:
        ValueError: If the plan is not fixed, the network is in training mode, there are fewer examples than a batch,
            values are not finite, or weights were rounded or biases corrected before and no `reference` is given.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> x = torch.randn(32, 4)
        >>> compressor = bb.attach(model, x)
        >>> compressor.fix(bb.baselines.uniform(compressor, [x], weights=3))
        >>> report = bb.baselines.adaround(compressor, [x], bb.baselines.AdaRoundConfig(steps=20))
        >>> [unit.name for unit in report.units]
        ['0', '2']
    """
    settings = Settings(AdaRoundConfig() if config is None else config, blocks=False)
    return reconstruct_network(compressor, batches, settings, reference, progress, "adaptive rounding")
