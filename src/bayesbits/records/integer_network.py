"""The `IntegerNetwork`: the final integers of a deployed network.

It holds the codes of every weight with their steps, biases as int32 on the grid of their layer, the grid of every
activation, and what stays in float and why. `deploy` writes it; the torch executor, the packer, the ONNX writer and
`verify` only read it, so that equality is proven integer for integer. Its `Structure` is plain data with a versioned
JSON form; the tensors are stored beside it, by name.

Codes are centered here: the code 0 is the number 0, signed codes of 4 bits are -7..7, and those of an asymmetric range
lie anywhere around 0, such as -2..13. A runtime carries an activation as an unsigned integer of 8 or 16 bits, which is
the code plus the zero point of its grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesbits.records.dynamic_size import DynamicSize
from bayesbits.records.serialization import Record, find_by_name
from bayesbits.records.topology import EMBEDDING
from bayesbits.utils.pytree import Tree


@dataclass(frozen=True)
class Grid:
    """The grid of one activation tensor."""

    name: str
    """The tensor: a layer's name with ".input", or a module's with ".output" for the operand of an addition."""
    bits: int
    """The width; above 16 bits the tensor stays float, rounded to the grid up to 24 bits, and clipped from there on."""
    signed: bool
    """Whether codes below zero exist."""
    step: float
    """The distance between two codes: a number of float32, exactly."""
    low: int
    """The smallest code."""
    high: int
    """The largest code."""
    beta: float
    """The end of the range; needed where the tensor stays in float and is only clipped."""
    alpha: float | None = None
    """The lower end of an asymmetric range; None where the range is symmetric or unsigned."""

    @property
    def carrier(self) -> str | None:
        """The integer type in which a runtime stores codes: "uint8" or "uint16"; None where the tensor stays float."""
        return "uint8" if self.bits <= 8 else "uint16" if self.bits <= 16 else None

    @property
    def zero_point(self) -> int:
        """The number that is added to codes to store them as unsigned integers.

        It makes the smallest code of an asymmetric range 0. Of symmetric ones it is 128, or 32768 for 16 bits.
        """
        if self.alpha is not None:
            return -self.low
        return 0 if not self.signed else 2 ** (15 if self.carrier == "uint16" else 7)

    def same_codes(self, other: Grid) -> bool:
        """Whether every number has the same code on another grid, which is that of another tensor."""
        return replace(self, name=other.name) == other

    @property
    def kind(self) -> str:
        """ "unsigned", "symmetric" or "asymmetric"."""
        return "asymmetric" if self.alpha is not None else "symmetric" if self.signed else "unsigned"


@dataclass(frozen=True)
class IntegerLayer:
    """One weighted layer, batch norm folded, channels removed."""

    name: str
    """The layer's name in the user's network."""
    kind: str
    """"conv", "conv_transpose" or "linear"."""
    parameter: str
    """The weight parameter's name in the user's network; layers with tied weights name the same one."""
    arithmetic: str
    """"integer": codes in, exact accumulation; "float": numbers in, numbers out."""
    reason: str | None
    """Why the arithmetic is float; None where it is integer."""
    bits: int
    """The width of the weight; above 16 bits there are no codes, and the weight is a float tensor."""
    weight_shape: tuple[int, ...]
    """The shape of the weight as torch stores it, with the channels that are left."""
    bias: bool
    """Whether there is a bias: int32 on the grid of input step times weight step, or float with float arithmetic."""
    input: str | None
    """The grid of the tensor that the layer reads; None where that is float, or quantized at run time."""
    output: str | None
    """The grid whose codes the layer emits; None where it emits numbers."""
    output_low: int
    """The smallest code that it emits: the grid's, or more where a ReLU or clipping is absorbed; 0 without `output`."""
    output_high: int
    """The largest code that it emits."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    macs: int
    """Multiply-accumulates for the inputs that the network was attached with, all calls together."""
    group_size: int | None = None
    """How many neighboring inputs of an output share a step of the weight; None where all inputs of an output do."""
    dynamic: bool = False
    """Whether the layer reads numbers, and quantizes them to 8 bits by the range that they have at run time. With
    integer arithmetic its bias is float, and it emits numbers."""


@dataclass(frozen=True)
class IntegerTable:
    """One table of embeddings or weight of a recurrent layer: codes that are read as numbers, each multiplied by the
    step of its row."""

    name: str
    """The table's name in the user's network."""
    parameter: str
    """The parameter's name in the user's network."""
    bits: int
    """The width; above 16 bits there are no codes, and the table is a float tensor."""
    rows: int
    columns: int
    kind: str = EMBEDDING
    """"embedding": rows are looked up; "recurrent": a recurrent layer in float reads the whole matrix."""
    macs: int = 0
    """Multiply-accumulates for the inputs that the network was attached with; 0 for a table of embeddings."""


@dataclass(frozen=True)
class IntegerProduct:
    """One matrix product of two activations."""

    name: str
    """The product's name in the topology of the user's network."""
    arithmetic: str
    """"integer": codes in, exact accumulation; "float": numbers in, numbers out."""
    reason: str | None
    """Why the arithmetic is float; None where it is integer."""
    left: str | None
    """The grid of the first operand; None where that is float."""
    right: str | None
    """The grid of the second operand; None where that is float."""
    output: str | None
    """The grid whose codes the product emits; None where it emits numbers."""
    output_low: int
    """The smallest code that it emits; 0 without `output`."""
    output_high: int
    """The largest code that it emits."""
    macs: int
    """Multiply-accumulates for the inputs that the network was attached with, all calls together."""


@dataclass(frozen=True)
class Argument:
    """One argument of the network's call."""

    name: str
    """Its name in the network's forward; behind the name of `*args` its position."""
    form: Tree
    """The tensors and constants in it. The number of a tensor is its position among the inputs."""
    given: str
    """How it can be given: by "position" alone, by "name" alone, or "either" way."""
    optional: bool
    """Whether it may be left out: a constant that is the default."""


@dataclass(frozen=True)
class Structure(Record):
    """Everything about an `IntegerNetwork` but its tensors."""

    VERSION: ClassVar[int] = 2

    layers: tuple[IntegerLayer, ...]
    """The weighted layers, in the order in which they first run."""
    grids: tuple[Grid, ...]
    """The grids of the activation tensors that are quantized."""
    takes: tuple[Argument, ...]
    """What the network is called with, in the order of its forward."""
    returns: Tree
    """What the network returns. The number of a tensor is its position among the outputs."""
    inputs: tuple[str, ...]
    """The names of the tensors that go in, in the order of the graph: of the arguments, as in a file."""
    input_shapes: tuple[tuple[int, ...], ...]
    """The shapes of the inputs that the network was attached with."""
    input_types: tuple[str, ...]
    """Their dtypes, such as "float32"."""
    batched: tuple[bool, ...]
    """For each input whether its first size is that of the batch, and may be any."""
    outputs: tuple[str, ...]
    """The names of the tensors that come out: keys where the network returns a dict, "output" for one tensor."""
    removed: tuple[int, ...]
    """The channel classes of the user's network that are gone."""
    other_macs: int
    """Multiply-accumulates outside of the layers, which stay in float."""
    other_parameters: int
    """Elements of parameters outside of the layers, which stay in float."""
    notes: tuple[str, ...]
    """Remarks, such as what stays in float although it was to be quantized."""
    tables: tuple[IntegerTable, ...] = ()
    """The tables of embeddings, and then the weights of recurrent layers, that are quantized."""
    version: int = VERSION
    """The version of the JSON form."""
    products: tuple[IntegerProduct, ...] = ()
    """The products of two activations with quantized operands, in running order."""
    sizes: tuple[DynamicSize, ...] | None = None
    """The sizes of inputs that may change from call to call, the batch among them; None in files that do not say it,
    where only the batch may."""

    fixed_sizes: tuple[str, ...] = ()
    """A line for every batch, sequence or image whose size may not change, with the reason."""

    @property
    def dynamic_places(self) -> frozenset[tuple[int, int]]:
        """Where the sizes stand that may change: positions of inputs, each with the dimension."""
        if self.sizes is None:
            return frozenset((number, 0) for number, batched in enumerate(self.batched) if batched)
        return frozenset(place for size in self.sizes for place in size.places)

    @property
    def dynamic_batch(self) -> bool:
        """Whether the network takes batches of any size, or only of the size that it was attached with."""
        return any(self.batched)


@dataclass(frozen=True)
class IntegerNetwork:
    """The final integers of a deployed network.

    `DeployedNetwork.integer` is one; `bb.load` reads it from a file.

    Args:
        structure: Everything but the tensors: layers, grids, inputs and outputs, with a versioned JSON form.
        tensors: The codes, steps and biases of the layers, by name.

    Example::

        >>> import bayesbits as bb
        >>> import torch
        >>> compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4), bb.Spec(bits=(4, 8)))
        >>> compressor.calibrate([torch.rand(8, 4)])
        >>> compressor.fix(bb.Plan.uniform(compressor.topology, weights=4))
        >>> network = bb.deploy(compressor).integer
        >>> [(layer.bits, layer.arithmetic) for layer in network.layers]
        [(4, 'integer')]
        >>> network.codes("").dtype, int(network.codes("").abs().max())
        (torch.int8, 7)
    """

    structure: Structure
    """Everything but the tensors."""
    tensors: Mapping[str, Tensor]
    """For every layer "<name>.codes" (int8, or int16 above 8 bits) and "<name>.steps" (float32: one, or one for each
    output channel, or with groups [output channels, groups]), or "<name>.weight" (float32) where there are no codes;
    and "<name>.bias", where there is one. The same for every table, with one step, or one for each row."""

    @property
    def layers(self) -> tuple[IntegerLayer, ...]:
        """The layers, in running order."""
        return self.structure.layers

    @property
    def tables(self) -> tuple[IntegerTable, ...]:
        """The tables of embeddings, and then the weights of recurrent layers, that are quantized."""
        return self.structure.tables

    @property
    def products(self) -> tuple[IntegerProduct, ...]:
        """The products of two activations with quantized operands, in running order."""
        return self.structure.products

    @property
    def parts(self) -> tuple[IntegerLayer | IntegerProduct, ...]:
        """The layers, and then the products."""
        return (*self.layers, *self.products)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: layers and tensors that stay in float, sizes that are fixed, and why."""
        return (*self.structure.notes, *self.structure.fixed_sizes)

    def layer(self, name: str) -> IntegerLayer:
        """The layer of this name; a KeyError that says which names there are."""
        return find_by_name(self._layers, name, "layer")

    def table(self, name: str) -> IntegerTable:
        """The table of this name; a KeyError that says which names there are."""
        return find_by_name({table.name: table for table in self.tables}, name, "table")

    def product(self, name: str) -> IntegerProduct:
        """The product of this name; a KeyError that says which names there are."""
        return find_by_name({product.name: product for product in self.products}, name, "product")

    def grid(self, name: str) -> Grid:
        """The grid of the tensor of this name; a KeyError that says which names there are."""
        return find_by_name(self._grids, name, "quantized tensor")

    def codes(self, layer: str) -> Tensor:
        """The codes of a layer's weight, or of a table."""
        return self.tensors[f"{layer}.codes"]

    def steps(self, layer: str) -> Tensor:
        """The steps of a layer's weight: a vector with one element, or with one for each output channel, or row; with
        groups a matrix, with one for each group of inputs of each output channel."""
        return self.tensors[f"{layer}.steps"]

    def bias(self, layer: str) -> Tensor | None:
        """The bias of a layer: int32, a part of its sums, or float32 where it is added to its numbers."""
        return self.tensors.get(f"{layer}.bias")

    def adds_bias_to_numbers(self, layer: IntegerLayer) -> bool:
        """Whether a layer with codes in and numbers out has no bias in its sums: a linear one inside the network.

        The sums of the network's last layers hold their bias, so that two classes with equal sums have equal numbers.
        """
        bias = self.bias(layer.name)
        computes = layer.kind == "linear" and layer.arithmetic == "integer" and not layer.dynamic
        return computes and layer.output is None and (bias is None or bias.is_floating_point())

    def bias_numbers(self, layer: IntegerLayer) -> Tensor:
        """The bias of a layer as numbers: its codes times the step of the layer's sums, or what is stored in float."""
        bias = self.tensors[f"{layer.name}.bias"]
        if bias.dtype != torch.int32:
            return bias
        assert layer.input is not None
        return bias_numbers(bias, self.grid(layer.input).step, self.steps(layer.name))

    @property
    def parameter_count(self) -> int:
        """The elements of weights, biases and parameters that stay in float; a tied weight counts once."""
        weights = {layer.parameter: _weight(self, layer).numel() for layer in reversed(self.layers)}
        tables = sum(table.rows * table.columns for table in self.tables)
        biases = sum(self.tensors[f"{layer.name}.bias"].numel() for layer in self.layers if layer.bias)
        return sum(weights.values()) + tables + biases + self.structure.other_parameters

    @property
    def macs(self) -> int:
        """The multiply-accumulates for the inputs that the network was attached with."""
        return sum(part.macs for part in (*self.parts, *self.tables)) + self.structure.other_macs

    @cached_property
    def _layers(self) -> dict[str, IntegerLayer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        return {grid.name: grid for grid in self.structure.grids}


def bias_numbers(codes: Tensor, input_step: float, weight_steps: Tensor) -> Tensor:
    """The codes of a bias as numbers, rounded once: the product of both steps is exact in float64."""
    return (codes.double() * (input_step * weight_steps.double())).float()


def _weight(network: IntegerNetwork, layer: IntegerLayer) -> Tensor:
    codes = network.tensors.get(f"{layer.name}.codes")
    return network.tensors[f"{layer.name}.weight"] if codes is None else codes
