"""Methods to compare with, or to apply on top of any plan. None of them trains the network.

Three of them return plans:

- `uniform`: the same width for all weights and for all activations, with calibrated ranges;
- `sensitivity`: widths of tensors lowered one after the other, the least sensitive tensors first;
- `solve`: widths by an integer program over scores of every tensor and width, within a budget.

The others change weights or biases and return a report:

- `equalize`, before attaching: channels get equal ranges across layers (cross-layer equalization);
- `smooth`, before attaching: outliers of single input channels move into the weights (SmoothQuant);
- `adaround`, on a fixed plan: learns which weights are rounded up and which down;
- `reconstruct`, on a fixed plan: the same block by block, with ranges learned and activations quantized at random;
- `gptq`, on a fixed plan: codes of linear layers whose errors compensate for each other, without learning;
- `correct_biases`, on a fixed plan: biases compensate for the shift of a layer's mean by rounding.
"""

# To add a baseline:
# 1. Write one file with the name of the method and one public function. A method that decides widths takes a
#    `Compressor` and returns a `Plan` (or a record with a `Front` of plans), so that `fix`, `cost`, fine-tuning and
#    deployment work for it unchanged; `uniform.py` is the shortest example. A method that changes weights or biases
#    takes a `Compressor` with a fixed plan, or the float network before attaching as `equalize` does, and returns a
#    report; `layerwise.py` has the checks and the observation of single layers.
# 2. Parts that only this method uses go to files with its name as a prefix, such as `adaround_rounding.py`.
# 3. Add the public names to the imports, to `__all__` and to `_SOURCES` below, and a test file for every new file, with
#    values computed by hand; then run `python -m tests.tree`.

import sys
from typing import TYPE_CHECKING

from bayesbits.utils.lazy_package import LazyPackage

if TYPE_CHECKING:
    from bayesbits.baselines.adaround import adaround
    from bayesbits.baselines.adaround_rounding import AdaRoundConfig
    from bayesbits.baselines.bias_correction import BiasCorrectionReport, correct_biases, correct_biases_without_data
    from bayesbits.baselines.cross_layer_equalization import EqualizationReport, equalize
    from bayesbits.baselines.gptq import gptq
    from bayesbits.baselines.reconstruction import ReconstructionConfig, reconstruct
    from bayesbits.baselines.rounding_report import RoundingReport
    from bayesbits.baselines.sensitivity import Sensitivity, sensitivity
    from bayesbits.baselines.smoothing import SmoothingReport, smooth
    from bayesbits.baselines.solver import solve
    from bayesbits.baselines.uniform import uniform

__all__ = [
    "AdaRoundConfig",
    "BiasCorrectionReport",
    "EqualizationReport",
    "ReconstructionConfig",
    "RoundingReport",
    "Sensitivity",
    "SmoothingReport",
    "adaround",
    "correct_biases",
    "correct_biases_without_data",
    "equalize",
    "gptq",
    "reconstruct",
    "sensitivity",
    "smooth",
    "solve",
    "uniform",
]

# Where each public name comes from, as "module:attribute"; it is imported when it is first used.
_SOURCES = {
    "AdaRoundConfig": "bayesbits.baselines.adaround_rounding:AdaRoundConfig",
    "BiasCorrectionReport": "bayesbits.baselines.bias_correction:BiasCorrectionReport",
    "EqualizationReport": "bayesbits.baselines.cross_layer_equalization:EqualizationReport",
    "ReconstructionConfig": "bayesbits.baselines.reconstruction:ReconstructionConfig",
    "RoundingReport": "bayesbits.baselines.rounding_report:RoundingReport",
    "Sensitivity": "bayesbits.baselines.sensitivity:Sensitivity",
    "SmoothingReport": "bayesbits.baselines.smoothing:SmoothingReport",
    "adaround": "bayesbits.baselines.adaround:adaround",
    "correct_biases": "bayesbits.baselines.bias_correction:correct_biases",
    "correct_biases_without_data": "bayesbits.baselines.bias_correction:correct_biases_without_data",
    "equalize": "bayesbits.baselines.cross_layer_equalization:equalize",
    "gptq": "bayesbits.baselines.gptq:gptq",
    "reconstruct": "bayesbits.baselines.reconstruction:reconstruct",
    "sensitivity": "bayesbits.baselines.sensitivity:sensitivity",
    "smooth": "bayesbits.baselines.smoothing:smooth",
    "solve": "bayesbits.baselines.solver:solve",
    "uniform": "bayesbits.baselines.uniform:uniform",
}

sys.modules[__name__].__class__ = LazyPackage
