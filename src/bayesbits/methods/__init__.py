"""The methods that Bayesian Bits is compared with, as quantizers that `attach` puts in by `Spec(method=...)`.

All of them are trained by the same engine, end in a `Plan`, and are counted, fixed, deployed and verified by the same
code. Every file has the equations of its paper, and says where it differs from the original setting.
"""

# To add a method:
# 1. Write one file with its name: a subclass of `MethodQuantizer` for weights and one for activations, or one for both,
#    with the equations of the paper in the docstring, and a `METHOD`. `lsq.py` is the shortest example.
# 2. Add it to the import and to `_ALL` below, from which `METHODS` is made, and to the choices in `cli/options.py`.
# 3. `tests/methods/test_quantizer.py` runs the conformance tests over all of `METHODS`; a test file of its own has the
#    forward pass and the gradients computed by hand. Then run `python -m tests.tree`.

from bayesbits.methods import (
    bayesian_bits,
    dq,
    fracbits,
    learned_width,
    lrnet,
    lsq,
    pact,
    qt,
    reinforce,
    rq,
    tqt,
    twn,
    wage,
)
from bayesbits.methods.method import Method
from bayesbits.methods.quantizer import MethodQuantizer

_ALL = (
    bayesian_bits.METHOD, reinforce.METHOD,  # gates decide
    lsq.METHOD, pact.METHOD, qt.METHOD, tqt.METHOD, rq.METHOD, wage.METHOD,  # fixed widths
    twn.METHOD, lrnet.METHOD, lrnet.BINARY,  # few weights, and float activations
    dq.METHOD, dq.RESTRICTED, fracbits.METHOD, learned_width.METHOD,  # widths are learned
)  # fmt: skip

METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""All methods, by the name that `Spec.method` has."""

__all__ = ["METHODS", "Method", "MethodQuantizer"]
