"""Block reconstruction: rounding of weights, and ranges of weights and activations, learned block after block.

AdaRound learns each layer by itself. Here the unit is a residual block (BRECQ), whose layers learn together so that the
block's output comes close to that of the float network, while activations are quantized at random (QDrop), so that what
is learned does not hang on single rounded activations. `reconstruction_blocks` finds the blocks,
`reconstruction_learning` has the equations, and `reconstruction_run` goes from unit to unit, as for AdaRound.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from bayesbits.baselines.adaround_rounding import AdaRoundConfig
from bayesbits.baselines.layerwise import Progress
from bayesbits.baselines.reconstruction_run import Settings, reconstruct_network
from bayesbits.baselines.rounding_report import RoundingReport
from bayesbits.compression.compressor import Compressor
from bayesbits.utils.checks import check_flag, check_number


@dataclass(frozen=True)
class ReconstructionConfig(AdaRoundConfig):
    """The options of `reconstruct`: those of `AdaRoundConfig`, and two more.

    Args:
        steps: The number of steps for each block or layer.
        batch_size: The number of examples in a step.
        lr: The learning rate of Adam.
        range_lr: The learning rate of the logarithms of the ranges, those of weights and those of activations; 0 leaves
            them as they are.
        bias_lr: The learning rate of the biases of layers outside of blocks, in standard deviations of the output
            channel; 0 leaves them as they are.
        strength: The weight of the regularizer, as a multiple of the curvature of the squared error, channel by
            channel.
        warm_up: The part of the steps, at the beginning, without the regularizer.
        exponents: The exponent of the regularizer after the warm-up and at the end; it falls linearly.
        after_activation: Whether the error is measured after the activation function (such as ReLU) that follows the
            layer, or directly at the layer's output.
        asymmetric: Whether a layer reads the outputs of the quantized layers before it, as in the final network, or
            those of the float network.
        max_gibibytes: The largest size of one layer's inputs and outputs that is held. Of more data, every n-th example
            is used.
        seed: The seed of the choice of examples.
        drop: The probability with which an activation is not quantized in a step; 0 quantizes all of them.
        blocks: Whether residual blocks are learned as a whole, or every layer by itself.

    Raises:
        ValueError: If an option has the wrong type or is out of its range.

    Example::

        >>> from bayesbits.baselines import ReconstructionConfig
        >>> ReconstructionConfig(steps=500).drop
        0.5
    """

    drop: float = 0.5
    """The probability with which an activation is not quantized in a step; 0 quantizes all of them."""
    blocks: bool = True
    """Whether residual blocks are learned as a whole, or every layer by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "drop", 0.0)
        if self.drop >= 1:
            raise ValueError(f"ReconstructionConfig.drop is {self.drop!r}; it is a probability, below 1")
        check_flag(self, "blocks")


def reconstruct(
    compressor: Compressor,
    batches: Iterable[Any],
    config: ReconstructionConfig | None = None,
    *,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> RoundingReport:
    """Learn the rounding of weights and all ranges, block after block, of a network with a fixed plan.

    Any plan will do: mixed widths, and channels that are removed. Weights change by at most one code each, and the
    ranges of weights and activations that have a quantizer, and the biases of layers outside of blocks; nothing else. A
    block stays as it was where what was learned is not better on the data. Where the call fails, everything is
    restored.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        batches: Batches of inputs, as for `Compressor.calibrate`. All of them are held in memory.
        config: The options; by default `ReconstructionConfig()`.
        reference: The float network whose outputs are approximated. By default it is this network without its
            quantizers. Where weights were rounded or biases corrected since, a copy made before is needed.
        progress: A function that is called with the name of a block or layer, its number, and how many there are.

    Returns:
        The errors of every block and layer before and after, and the layers that were skipped.

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
        >>> report = bb.baselines.reconstruct(compressor, [x], bb.baselines.ReconstructionConfig(steps=20))
        >>> [unit.name for unit in report.units]
        ['0', '2']
    """
    config = ReconstructionConfig() if config is None else config
    settings = Settings(config, config.drop, activation_ranges=True, blocks=config.blocks)
    return reconstruct_network(compressor, batches, settings, reference, progress, "reconstruction")
