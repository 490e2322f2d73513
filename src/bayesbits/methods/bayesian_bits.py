"""Bayesian Bits: the method of this package, whose quantizer is `nn.gated_quantizer`."""

from bayesbits.methods.method import Method

METHOD = Method(
    name="bayesian_bits",
    title="Bayesian Bits",
    paper="van Baalen et al., Bayesian Bits: Unifying Quantization and Pruning, NeurIPS 2020",
    folds=True,
)
