"""The modules of a deployed network: layers, products, tables, quantizers, and the tensors that stay in float.

Codes are whole numbers in float tensors, centered at zero, so that padding with zeros, moving data and taking maxima
need nothing special. Accumulation is exact: in float32 where no sum can reach 2^24, in float64 elsewhere. The scaling
that follows is that of onnxruntime's integer kernels, operation by operation in float32:

    codes out:    clip(rint(float32(acc) * float32(float32(s_x s_w) / s_y)), low, high)
    numbers out:  float32(acc) * float32(s_x s_w), or float32(acc) * float32(s_x s_w) + bias

The bias is a part of acc, but for linear layers inside the network that emit numbers, and where the input is quantized
at run time; s_x is the step that it has then.

The product of two activations is scaled in the same way, with the step of its second operand in the place of s_w.
"""

from bayesbits.deploy.modules.float_tensors import FloatTensors
from bayesbits.deploy.modules.layers import make_layer
from bayesbits.deploy.modules.products import make_product
from bayesbits.deploy.modules.quantizers import Dequantize, Quantize
from bayesbits.deploy.modules.tables import make_table
from bayesbits.deploy.modules.targets import DEQUANTIZERS, FLOATS, LAYERS, PRODUCTS, QUANTIZERS, TABLES, target_of

__all__ = [
    "DEQUANTIZERS",
    "FLOATS",
    "LAYERS",
    "PRODUCTS",
    "QUANTIZERS",
    "TABLES",
    "Dequantize",
    "FloatTensors",
    "Quantize",
    "make_layer",
    "make_product",
    "make_table",
    "target_of",
]
