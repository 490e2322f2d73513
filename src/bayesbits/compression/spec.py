"""What a user chooses: the options of compressing a network, and rules for single layers and tensors.

A `Spec` is checked when it is made, without a network; `compression.search_space` applies it to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal

from bayesbits.compression.penalties import PENALTIES
from bayesbits.compression.table_files import as_table
from bayesbits.functional.gates import KINDS as GATE_KINDS
from bayesbits.functional.grid import MAX_BITS, MIN_BITS
from bayesbits.methods import METHODS
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.utils.checks import check_choice, check_flag, check_integer, is_integer

BACKENDS = ("onnxruntime", "openvino", "tensorrt")
ACTIVATIONS = ("static", "dynamic", "float")
GROUP_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Rule:
    """What a user demands of single layers or tensors; a field that is None is left to the `Spec`.

    Args:
        bits: A fixed width; 32 leaves the tensor in float.
        min_bits: The narrowest width that may be learned.
        max_bits: The widest width that may be learned.
        prune: False: all output channels stay. True: they may be removed, also where `Spec.prune` is False.
        min_channels: How many channels stay at least in every group of channels that the layer makes; all of them where
            there are fewer.
        skip: The layer is left in float entirely, and keeps its channels.

    Raises:
        ValueError: A field has no sensible value, or two of them contradict each other.

    Example::

        >>> import bayesbits as bb
        >>> spec = bb.Spec(rules={"*": bb.Rule(max_bits=8), "head": bb.Rule(bits=8, prune=False)})
        >>> spec.rules["head"].bits
        8
    """

    bits: int | None = None
    """A fixed width; 32 leaves the tensor in float."""
    min_bits: int | None = None
    """The narrowest width that may be learned."""
    max_bits: int | None = None
    """The widest width that may be learned."""
    prune: bool | None = None
    """False: all output channels stay. True: they may be removed, also where `Spec.prune` is False."""
    min_channels: int | None = None
    """How many channels stay at least in every group of channels that the layer makes."""
    skip: bool = False
    """The layer is left in float entirely, and keeps its channels."""

    def __post_init__(self) -> None:
        for name in ("bits", "min_bits", "max_bits"):
            if getattr(self, name) is not None:
                _check_width(f"Rule.{name}", getattr(self, name))
        if not isinstance(self.prune, bool | None):
            raise ValueError(f"Rule.prune is {self.prune!r}; it is True, False or None")
        check_flag(self, "skip")
        if self.min_channels is not None:
            check_integer(self, "min_channels", 1)
        others = (self.bits, self.min_bits, self.max_bits, self.prune, self.min_channels)
        if self.skip and any(value is not None for value in others):
            raise ValueError("Rule.skip leaves a layer in float with all of its channels; give nothing else beside it")
        if self.bits is not None and (self.min_bits is not None or self.max_bits is not None):
            raise ValueError(f"Rule.bits fixes the width at {self.bits}; give no min_bits or max_bits beside it")
        if self.min_bits is not None and self.max_bits is not None and self.min_bits > self.max_bits:
            raise ValueError(f"Rule.min_bits is {self.min_bits}, more than Rule.max_bits, which is {self.max_bits}")


@dataclass(frozen=True)
class Spec:
    """How a network is to be compressed.

    Args:
        bits: The widths to learn between, increasing, from 2 to 32.
        prune: Whether output channels may be removed.
        gates: The kind of the gates: "hard_concrete" (with noise, as in the paper), "hard_sigmoid" or "sigmoid".
        penalty: What the gates are charged for: "paper", "expected_bops", "expected_bytes", "expected_latency" or
            "variational".
        latency_table: The latency table of the network, or its file, which only the penalty "expected_latency" needs.
        num_examples: The number of training examples, which only the variational penalty needs.
        input_bits: The width of the network's input: fixed, where 32 leaves it in float, or "learned".
        residual_bits: The width of the operands of residual additions: fixed, "learned", or None for no quantizer.
            "auto" is 8 bits, but none where a normalization such as LayerNorm reads the sum, as in transformers.
        output_bits: The width of the outputs of convolutions that float operations read (SiLU, GELU, a batch norm that
            cannot be folded): fixed, "learned", or None for no quantizer.
        per_channel_weights: Whether every output channel of a weight, and every row of a table of embeddings, has a
            range of its own. Rows of embeddings of 64 weights and more have one in any case.
        fold_batch_norm: Whether weights are rounded as they are deployed, with the factors of the batch norm behind
            their layer, where that can be folded. Not for methods that never do, as `bayesbits.methods` says.
        asymmetric_activations: Whether the range of an activation with values below zero has two ends of its own.
        unsigned_activations: Whether the range of an activation without values below zero starts at zero.
        activations: "static" (ranges that are calibrated and learned), "dynamic" (inputs of linear layers are quantized
            to 8 bits by the range that they have at run time), or "float" (only weights are quantized).
        group_size: How many neighboring inputs of an output share a range in the weights of linear layers: 16, 32, 64,
            128 or 256. None: all of them. Only with activations="float" and prune=False.
        activation_products: Whether the operands of products of two activations, as in attention, are quantized. Not
            with activations="float".
        channel_multiple: The number of kept channels of a group is rounded up to a multiple of this.
        method: How tensors are quantized: "bayesian_bits", or a method to compare with, such as "lsq", "pact" or "dq"
            (see `bayesbits.methods`). These neither prune nor have gates or asymmetric ranges, and one range for each
            tensor, as in their papers, whatever other options say.
        weight_bits: The width of all weights, for a method with fixed widths; None: the method's default.
        activation_bits: The width of all activations but the input, for a method with fixed widths; 32: they stay in
            float. None: the method's default.
        edge_bits: The width of the first and the last layer, for another method than "bayesian_bits"; 32: they stay in
            float, as in many papers. None: that of all other layers.
        rules: Demands on single layers or tensors, by shell-style patterns of their names.

    Raises:
        ValueError: A field has no sensible value; the message names it and what is allowed.

    Example::

        >>> import bayesbits as bb
        >>> spec = bb.Spec(bits=(2, 4, 8), rules={"layer1.*": {"min_bits": 4}, "fc": {"bits": 8, "prune": False}})
        >>> spec.rules["fc"]
        Rule(bits=8, min_bits=None, max_bits=None, prune=False, min_channels=None, skip=False)
        >>> bb.Spec.paper().residual_bits is None
        True
    """

    bits: tuple[int, ...] = (2, 4, 8, 16, 32)
    """The widths to learn between, increasing, from 2 to 32."""
    prune: bool = True
    """Whether output channels may be removed."""
    gates: str = "hard_concrete"
    """The kind of the gates: "hard_concrete" (with noise, as in the paper), "hard_sigmoid" or "sigmoid"."""
    penalty: str = "paper"
    """What the gates are charged for: "paper", "expected_bops", "expected_bytes", "expected_latency" or "variational".
    """
    num_examples: int | None = None
    """The number of training examples, which only the variational penalty needs."""
    input_bits: int | Literal["learned"] = 8
    """The width of the network's input: fixed, where 32 leaves it in float, or "learned". An input of fixed width keeps
    the range that calibration finds: to learn it, the first layer would compute a gradient that nothing else needs."""
    residual_bits: int | Literal["auto", "learned"] | None = "auto"
    """The width of the operands of residual additions: fixed, "learned", or None for no quantizer. "auto" is 8 bits,
    which lets convolutions emit codes, but no quantizer where a normalization over features (LayerNorm, RMSNorm,
    GroupNorm) reads the sum and no convolution makes it: the residual streams of transformers have outliers in single
    channels, which one range for all channels rounds badly, and no integer kernel reads them."""
    output_bits: int | Literal["learned"] | None = None
    """The width of the outputs of convolutions that float operations read: fixed, "learned", or None for no quantizer.
    With a quantizer the layer emits codes, for which runtimes have much faster kernels than for numbers. It counts in
    no cost."""
    per_channel_weights: bool = False
    """Whether every output channel of a weight, and every row of a table of embeddings, has a range of its own. Rows of
    embeddings of 64 weights and more have one in any case."""
    fold_batch_norm: bool = True
    """Whether weights are rounded as they are deployed, with the factors of the batch norm behind their layer: all
    output channels then share one grid after folding. Otherwise the weights themselves are rounded, and folding gives
    every output channel a step of its own. The methods to compare with do as their papers say, whatever this is."""
    asymmetric_activations: bool = True
    """Whether the range of an activation with values below zero has two ends of its own, [alpha, beta] with a zero
    point, as outputs of GELU, SiLU and hard-swish and standardized images need it; otherwise it is symmetric,
    [-beta, beta]. Activations without values below zero are unsigned in both cases, and weights are symmetric."""
    unsigned_activations: bool = True
    """Whether the range of an activation without values below zero, as behind a ReLU, starts at zero; otherwise it is
    symmetric too, [-beta, beta], half of it unused, for runtimes that have signed codes with a zero point of 0 alone.
    """
    activations: str = "static"
    """How activations are quantized. "static": to learned widths, in ranges that are calibrated and learned. "dynamic":
    the inputs of linear layers to 8 bits, by the range that each tensor has at run time; convolutions stay "static",
    as the runtime's integer convolution of such inputs is slower than the float one. "float": only weights are
    quantized, tables of embeddings included, for networks whose speed is that of reading their weights; the options
    for the widths of inputs, operands and outputs have no effect."""
    group_size: int | None = None
    """How many neighboring inputs of an output share a range in the weights of linear layers: 16, 32, 64, 128 or 256;
    None: all of them. Such weights are stored with a step for every group, and multiplied with float activations, so
    that it needs activations="float"; and prune=False, as groups would fall apart without some of their inputs."""
    activation_products: bool = False
    """Whether the operands of matrix products of two computed tensors are quantized, as those of attention: their
    widths are learned, and the products are charged and counted like layers. The output of softmax has the range 0 to
    1, masks are left alone. Otherwise these products stay in float and count at 32 bits, and a runtime can run its own
    attention. With activations="dynamic" the ranges of these operands are calibrated and learned all the same."""
    channel_multiple: int = 1
    """The number of kept channels of a group is rounded up to a multiple of this."""
    latency_table: LatencyTable | str | None = None
    """The latency table of the network, or its file, which only the penalty "expected_latency" needs."""
    method: str = "bayesian_bits"
    """How tensors are quantized: "bayesian_bits", or the name of a method to compare with (see `bayesbits.methods`)."""
    weight_bits: int | None = None
    """The width of all weights, for a method with fixed widths; None: the method's default."""
    activation_bits: int | None = None
    """The width of all activations but the input, for a method with fixed widths; 32 is float. None: the method's
    default."""
    edge_bits: int | None = None
    """The width of the first and the last layer, for another method than "bayesian_bits"; None: that of all others."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Demands on single layers or tensors, by shell-style patterns of their names, as a `Rule` or a dict with its keys.

    A pattern that matches layers ("layer1.*") concerns their weights, inputs and channels. One that matches no layer is
    compared with the names of tensors ("fc.weight", "fc.input", "layer1.0.bn2.output"). A later pattern overrides an
    earlier one: a fixed width, bounds and `skip` replace each other, `prune` stays unless given.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", _check_widths(self.bits))
        check_choice(self, "gates", GATE_KINDS)
        check_choice(self, "penalty", tuple(PENALTIES))
        if self.penalty == "variational" and self.num_examples is None:
            raise ValueError("Spec.num_examples is None; the variational penalty needs the number of training examples")
        if self.num_examples is not None:
            check_integer(self, "num_examples", 1)
        if (self.penalty == "expected_latency") != (self.latency_table is not None):
            raise ValueError(
                f"Spec.latency_table is {'None' if self.latency_table is None else 'given'} and Spec.penalty is "
                f"{self.penalty!r}: the penalty 'expected_latency' needs a table, and others none. A budget in "
                "milliseconds brings its own"
            )
        as_table(self.latency_table, "Spec.latency_table")
        if self.latency_table is not None and self.activations != "static":
            raise ValueError(
                f"Spec.activations is {self.activations!r} and Spec.latency_table is given: a latency table has times "
                "of static activations alone. Choose the penalty 'expected_bops' or 'expected_bytes', or "
                "activations='static'"
            )
        check_flag(self, "prune")
        check_flag(self, "per_channel_weights")
        check_flag(self, "fold_batch_norm")
        check_flag(self, "asymmetric_activations")
        check_flag(self, "unsigned_activations")
        if self.asymmetric_activations and not self.unsigned_activations:
            raise ValueError(
                "Spec.unsigned_activations is False, and Spec.asymmetric_activations True: without unsigned ranges all "
                "are symmetric, so set both to False"
            )
        check_flag(self, "activation_products")
        if self.input_bits != "learned":
            _check_width("Spec.input_bits", self.input_bits, ' or "learned"')
        if self.residual_bits not in (None, "learned", "auto"):
            _check_width("Spec.residual_bits", self.residual_bits, ', "auto", "learned" or None')
        if self.output_bits not in (None, "learned"):
            _check_width("Spec.output_bits", self.output_bits, ', "learned" or None')
        check_integer(self, "channel_multiple", 1)
        check_choice(self, "activations", ACTIVATIONS)
        if self.activation_products and self.activations == "float":
            raise ValueError(
                "Spec.activation_products is True and Spec.activations is 'float', which leaves the operands of "
                "products in float, too: leave one of them out"
            )
        self._check_groups()
        self._check_method()
        if not isinstance(self.rules, Mapping):
            raise ValueError(f"Spec.rules is a {type(self.rules).__name__}; it maps patterns to rules")
        object.__setattr__(self, "rules", {pattern: _check_rule(pattern, rule) for pattern, rule in self.rules.items()})

    def _check_groups(self) -> None:
        if self.group_size is None:
            return
        if self.group_size not in GROUP_SIZES:
            raise ValueError(f"Spec.group_size is {self.group_size!r}; it is None or one of {GROUP_SIZES}")
        for name, wanted in (("activations", "float"), ("prune", False), ("method", "bayesian_bits")):
            if getattr(self, name) != wanted:
                raise ValueError(
                    f"Spec.group_size is {self.group_size} and Spec.{name} is {getattr(self, name)!r}: groups of "
                    f"inputs have ranges of their own with {name}={wanted!r} alone"
                )

    def _check_method(self) -> None:
        check_choice(self, "method", tuple(METHODS))
        if self.activations != "static" and self.activation_bits is not None:
            raise ValueError(
                f"Spec.activation_bits is {self.activation_bits} and Spec.activations is {self.activations!r}, which "
                "decides the width of activations: leave one of them out"
            )
        for name in ("weight_bits", "activation_bits"):
            width = getattr(self, name)
            if width is not None:
                _check_width(f"Spec.{name}", width, " or None")
                if METHODS[self.method].widths is None:
                    raise ValueError(
                        f"Spec.{name} is {width} and Spec.method is {self.method!r}, which learns the widths: leave it "
                        "out, give a rule with bits, or choose a method with fixed widths, such as 'lsq'"
                    )
        weights = METHODS[self.method].weights
        only = None if weights is None else weights.only_bits
        if only is not None and self.weight_bits not in (None, only, FLOAT_BITS):
            raise ValueError(
                f"Spec.weight_bits is {self.weight_bits} and Spec.method is {self.method!r}, whose weights have {only} "
                "bits: leave it out, or choose another method with fixed widths, such as 'lsq'"
            )
        if self.edge_bits is not None:
            _check_width("Spec.edge_bits", self.edge_bits, " or None")
            if self.gated:
                raise ValueError(
                    f"Spec.edge_bits is {self.edge_bits} and Spec.method is {self.method!r}, whose gates decide about "
                    "the first and the last layer too: give these layers a rule with bits instead"
                )

    @property
    def gated(self) -> bool:
        """Whether gates decide about widths and channels."""
        return METHODS[self.method].gated

    @property
    def fixed_widths(self) -> tuple[int, int] | None:
        """The bits of weights and of activations where the method fixes them; None where it learns them."""
        default = METHODS[self.method].widths
        if default is None:
            return None
        weights, activations = self.weight_bits, self.activation_bits
        return default[0] if weights is None else weights, default[1] if activations is None else activations

    @classmethod
    def paper(cls) -> Spec:
        """The paper's "updated" setting: symmetric ranges, no quantizers on the operands of residual additions.

        Returns:
            The spec.
        """
        return cls(residual_bits=None, asymmetric_activations=False)

    @classmethod
    def for_backend(cls, backend: str, activations: str = "static") -> Spec:
        """A spec with what a runtime computes with integers: widths up to 8 bits, operands of additions at 8 bits (but
        residual streams of transformers in float, as `residual_bits="auto"` says), multiples of 8 channels, and a range
        for every output channel of a weight.

        "onnxruntime" quantizes outputs of convolutions that float operations read as well, as its integer kernels of
        convolutions are fast only where they emit codes. Files for "openvino" and "tensorrt" have the form "qdq" of
        :func:`bayesbits.export_onnx`. "tensorrt" follows the rules that TensorRT publishes, signed codes with a zero
        point of 0 for weights and activations; it was never run with this library.

        Args:
            backend: The runtime: "onnxruntime", "openvino" or "tensorrt".
            activations: "static", or for networks of linear layers, such as transformers, "dynamic": their inputs are
                quantized at run time, and operands of additions stay in float. "float": only weights are quantized, in
                groups of 32 inputs, and no channels are removed. The latter two are for "onnxruntime".

        Returns:
            The spec.

        Raises:
            ValueError: There is no such backend.
        """
        if backend not in BACKENDS:
            raise ValueError(f"backend is {backend!r}; it is one of {', '.join(BACKENDS)}")
        if activations != "static" and backend != "onnxruntime":
            raise ValueError(f'activations={activations!r} is for the backend "onnxruntime", not {backend!r}')
        spec = cls(bits=(2, 4, 8), output_bits=8, channel_multiple=8, per_channel_weights=True)
        if activations != "static":
            spec = replace(spec, residual_bits=None, activations=activations)
        if activations == "float":
            spec = replace(spec, prune=False, group_size=32)
        if backend == "onnxruntime":
            return spec
        signed = backend == "tensorrt"
        return replace(spec, output_bits=None, asymmetric_activations=not signed, unsigned_activations=not signed)


def _check_width(name: str, value: Any, otherwise: str = "") -> None:
    if not is_integer(value) or not MIN_BITS <= value <= MAX_BITS:
        raise ValueError(f"{name} is {value!r}; it is an integer from {MIN_BITS} to {MAX_BITS}{otherwise}")


def _check_widths(bits: Any) -> tuple[int, ...]:
    if not isinstance(bits, tuple | list) or not bits:
        raise ValueError(f"Spec.bits is {bits!r}; it is a tuple of widths such as (2, 4, 8)")
    for width in bits:
        _check_width("a width in Spec.bits", width)
    if any(narrow >= wide for narrow, wide in pairwise(bits)):
        raise ValueError(f"Spec.bits is {bits!r}; the widths increase, each given once")
    return tuple(bits)


def _check_rule(pattern: Any, rule: Any) -> Rule:
    if not isinstance(pattern, str):
        raise ValueError(f"Spec.rules has the pattern {pattern!r}; patterns are strings")
    if isinstance(rule, Rule):
        return rule
    keys = [entry.name for entry in fields(Rule)]
    if not isinstance(rule, Mapping) or not rule.keys() <= set(keys):
        raise ValueError(f"Spec.rules[{pattern!r}] is {rule!r}; it is a Rule or a dict with keys of {', '.join(keys)}")
    try:
        return Rule(**rule)
    except ValueError as error:
        raise ValueError(f"Spec.rules[{pattern!r}]: {error}") from None
