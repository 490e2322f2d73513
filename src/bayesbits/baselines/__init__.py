"""Methods to compare with, and to add to any plan: none of them trains the network.

These end in plans:

- `uniform`: the same width everywhere, with ranges from data;
- `sensitivity`: tensors lowered one after the other, those first that alone do least harm.

These change weights or biases:

- `equalize`, before attaching: channels get ranges of equal size across layers;
- `adaround`, on a fixed plan: which weights are rounded up and which down is learned;
- `correct_biases`, on a fixed plan: biases take back what rounding does to the means of layers.
"""

from bayesbits.baselines.adaround import AdaRoundReport, adaround
from bayesbits.baselines.bias_correction import BiasCorrectionReport, correct_biases, correct_biases_without_data
from bayesbits.baselines.cross_layer_equalization import Equalizationreport, equalize
from bayesbits.baselines.reconstruction import AdaRoundConfig
from bayesbits.baselines.sensitivity import Sensitivity, sensitivity
from bayesbits.baselines.uniform import uniform

__all__ = [
    "AdaRoundConfig",
    "AdaRoundReport",
    "BiasCorrectionReport",
    "Equalizationreport",
    "Sensitivity",
    "adaround",
    "correct_biases",
    "correct_biases_without_data",
    "equalize",
    "sensitivity",
    "uniform",
]
