"""The mathematics, without modules: the grid, the gates, and the gated quantizer as definition and recursion."""

from bayesbits.functional.dispatch import implementation
from bayesbits.functional.gates import decide, gate_values, probability_on, sample_hard_concrete
from bayesbits.functional.grid import asymmetric_code_bounds, code_bounds, dequantize, quantize_to_codes, step_size
from bayesbits.functional.operation import gated_quantize
from bayesbits.functional.recursion import recursive_gated_quantize

__all__ = [
    "asymmetric_code_bounds",
    "code_bounds",
    "decide",
    "dequantize",
    "gate_values",
    "gated_quantize",
    "implementation",
    "probability_on",
    "quantize_to_codes",
    "recursive_gated_quantize",
    "sample_hard_concrete",
    "step_size",
]
