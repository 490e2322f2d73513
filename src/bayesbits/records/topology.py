"""The `Topology`: the weighted layers of a network, the tensors and channels between them, and what is not supported.

`graph.trace` writes it; attaching, cost and plans only read it. It is plain data with a versioned JSON form, and holds
no tensors.

Channels. Every channel of every tensor belongs to a *channel class*, an integer. Two channels have the same class if
they can only be removed together (the two sides of a residual addition, the input and output of a depthwise
convolution, the queries, keys and values of an attention head). A `ChannelGroup` is a run of consecutive classes with
the same producers, the same consumers, and the same reason why they cannot be removed, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from bayesbits.records.serialization import Record, find_by_name
from bayesbits.utils.short_names import list_names
from bayesbits.utils.tables import text_table

POOLED_BITS = 8
"""The width of the input of a max-pool with indices, where no width of operands is chosen."""


def output_axis(kind: str, groups: int) -> int:
    """The axis of a layer's weight that holds its output channels; `kind` and `groups` are those of a `Layer`.

    A transposed convolution has its inputs on axis 0. With groups its outputs are spread over both axes, but for a
    depthwise one, whose axis 0 holds both.
    """
    return 1 if kind == "conv_transpose" and groups == 1 else 0


@dataclass(frozen=True)
class Layer:
    """One weighted module: a convolution, a transposed convolution or a linear layer."""

    name: str
    """The module's path in the user's model, such as "layer1.0.conv1"."""
    kind: str
    """"conv", "conv_transpose" or "linear"."""
    parameter: str
    """The weight parameter's first name in the model; layers with tied weights name the same one."""
    weight_shape: tuple[int, ...]
    """The weight's shape as torch stores it."""
    groups: int
    """Convolution groups; 1 for linear layers."""
    bias: bool
    """Whether the layer has a bias."""
    calls: int
    """The number of times that the layer runs in one forward pass."""
    macs: int
    """The multiply-accumulates of all of its calls for the example inputs, batch included."""
    norm: str | None
    """The batch norm that alone reads this layer's output, and reads nothing else; None where there is none."""
    activation: str
    """The name of the Activation that this layer reads."""
    in_channels: tuple[int, ...]
    """The channel class of every input channel or feature."""
    out_channels: tuple[int, ...]
    """The channel class of every output channel or feature."""
    depthwise: bool
    """Whether there is one filter per channel: as many groups as input channels and as output channels."""
    followers: tuple[int, ...] = ()
    """The output channels that go with their class and need not be zero for that, as the queries and keys of an
    attention head: no gate decides about them, and nothing reads them once the other channels of the class are zero."""
    instance_norm: str | None = None
    """The instance norm that alone reads this layer's output, and reads nothing else; None where there is none. It
    stays behind the layer when this is deployed, and has the gate of its channels: it takes the factor of one in front
    of it away."""

    @property
    def deciding(self) -> tuple[int, ...]:
        """The output channels that have to be zero before their class can be removed; a depthwise layer has none."""
        if self.depthwise:
            return ()
        following = frozenset(self.followers)
        return tuple(index for index in range(len(self.out_channels)) if index not in following)


@dataclass(frozen=True)
class Activation:
    """A tensor that feeds weighted layers or a product; it gets one quantizer, shared by all of its consumers."""

    name: str
    """The first consumer's name with ".input" behind it; for an operand of a product the name of that."""
    consumers: tuple[str, ...]
    """The layers that read it, or the product. Tensors that one layer reads in several calls are one Activation."""
    network_input: bool
    """Whether it is a float input of the network, which may have been moved or reshaped, and not a computed tensor."""
    known_range: float | None = None
    """The end of the range where it is known without data: 1 for the output of softmax, which has no values below 0."""


@dataclass(frozen=True)
class Clip:
    """An emitted tensor that is read through a ReLU or another clipping function alone: its range ends where that
    does. Below -3 a hard-swish clips, too."""

    tensor: str
    """The tensor, named "module.output"."""
    low: float | None
    """The smallest value that passes; None where there is none."""
    high: float | None
    """The largest value that passes; None where there is none."""


@dataclass(frozen=True)
class NormInput:
    """Neighboring channels that a batch norm reads, and the quantized tensors that they are made of, by clipping,
    padding, taking maxima, adding and concatenating."""

    tensors: tuple[str, ...]
    """The tensors, named "module.output"; none where something else lies between."""
    size: int
    """The number of channels."""


@dataclass(frozen=True)
class FreeNorm:
    """A batch norm that is folded into no layer, and that reads tensors which can be quantized, maybe beside others."""

    name: str
    """The module's path in the user's model."""
    inputs: tuple[NormInput, ...]
    """The channels that it reads, in their order."""


@dataclass(frozen=True)
class Product:
    """A matrix product of two computed tensors, as in attention; each operand has a quantizer of its own."""

    name: str
    """The path of the module whose code computes it, and what it is, such as "encoder.0.attention.scores"."""
    operation: str
    """The function that computes it, such as "matmul" or "scaled_dot_product_attention"."""
    left: str
    """The name of the Activation that is the first operand."""
    right: str
    """The name of the Activation that is the second operand."""
    calls: int
    """The number of times that it runs in one forward pass."""
    macs: int
    """The multiply-accumulates of all of its calls for the example inputs, batch included."""
    sources: tuple[str, ...] = ()
    """The layers, tables and products whose outputs reach its operands without another of them between; empty where
    the operands are inputs of the network, and in files of earlier versions."""
    slices: tuple[int, ...] = ()
    """Where it is computed head by head, the channel class of every head, with which that part of it goes."""


EMBEDDING, RECURRENT = "embedding", "recurrent"
"""The kinds of tables."""


@dataclass(frozen=True)
class Table:
    """A matrix of weights that a float operation reads: a table of embeddings, whose rows are looked up and which
    nothing multiplies, or a weight of a recurrent layer, which multiplies activations in float."""

    name: str
    """The path of the first module that looks rows up; for a weight of a recurrent layer the parameter's name."""
    parameter: str
    """The parameter's first name in the model."""
    rows: int
    columns: int
    modules: tuple[str, ...]
    """The paths of all modules that read it."""
    kind: str = EMBEDDING
    """"embedding" or "recurrent"."""
    macs: int = 0
    """The multiply-accumulates of a weight of a recurrent layer, for the example inputs, batch included."""

    @property
    def elements(self) -> int:
        """The number of weights."""
        return self.rows * self.columns

    @property
    def attribute(self) -> str:
        """The parameter's name in its module, such as "weight" or "weight_ih_l0"."""
        return self.parameter.rpartition(".")[2]


@dataclass(frozen=True)
class Addition:
    """A residual addition of two tensors; with one operand, a max-pool whose indices are read."""

    name: str
    """The graph's name of the addition, with the path of the module that performs it."""
    operands: tuple[str | None, ...]
    """For each operand the outermost module whose output is that tensor; None where there is no such module."""
    normalized: bool = False
    """Whether a normalization over features, such as LayerNorm, reads the sum, and no convolution makes an operand: the
    residual stream of a transformer, which a quantizer costs most, and which no integer kernel needs as codes."""


@dataclass(frozen=True)
class ChannelGroup:
    """Channel classes `first` to `first + size - 1`, with the same producers, consumers and reason."""

    name: str
    """The first producing layer's name, or "input" and the like; unique in the topology."""
    first: int
    """The first channel class."""
    size: int
    """The number of channel classes."""
    producers: tuple[str, ...]
    """The layers with these classes among their output channels."""
    consumers: tuple[str, ...]
    """The layers with these classes among their input channels."""
    reason: str | None
    """Why these channels cannot be removed exactly; None: they can."""
    block: int = 1
    """How many channels of a layer a class is, one gate for all: the channels of an attention head; otherwise 1."""

    @property
    def removable(self) -> bool:
        """Whether a channel that its producers emit as zero can be deleted without changing the network's output."""
        return self.reason is None

    @property
    def channels(self) -> range:
        """The channel classes of this group."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True)
class Unsupported:
    """A part of the network that stays in float and is counted at 32 bits."""

    name: str
    """The path of a module, or the name of a node of the graph."""
    what: str
    """The kind of operation, such as "attention product", "functional linear" or "embedding"."""
    macs: int
    """Its multiply-accumulates for the example inputs; 0 where it has none."""
    reason: str
    """Why it is not handled."""
    slices: tuple[int, ...] = ()
    """As of a `Product`."""


def remaining_macs(entry: Product | Unsupported, removed: Collection[int]) -> int:
    """The multiply-accumulates of a product without its heads among the removed channel classes."""
    if not entry.slices:
        return entry.macs
    return entry.macs * sum(channel not in removed for channel in entry.slices) // len(entry.slices)


@dataclass(frozen=True)
class Topology(Record):
    """The weighted layers of a network, its tensors, its channels, and what is not supported; `print` shows a table.

    `bb.trace` reads it from a network, and `Compressor.topology` is one. `save` writes it to a file and `Topology.load`
    reads it.

    Args:
        layers: The convolutions and linear layers, in the order in which they first run.
        activations: The tensors that they read, and behind those the operands of products. Each gets one quantizer,
            which its consumers share.
        additions: The residual additions, in running order.
        emitted: The modules at whose outputs a quantizer lets a layer emit codes, although a float operation follows,
            and those of squeeze and excitation.
        shared_ranges: Families of tensors that calibration gives one range, because they hold the same values.
        groups: All channels of all layers, in groups that say which layers make and read them, and why they cannot be
            removed, if they cannot.
        unsupported: The parts of the network that stay in float, with the reason.
        output_layers: The layers whose output reaches the network's output without another weighted layer between.
        other_parameters: The number of elements of parameters outside of the layers and their batch norms.
        traced: Whether torch.export could read the network. Otherwise it was read by a run with hooks, and no channels
            can be removed.
        tables: The tables of embeddings and the weights of recurrent layers that can be quantized.
        clips: The bounds of clipping functions behind emitted tensors: calibration looks at no values beyond.
        hard_swishes: The emitted tensors that only a hard-swish reads.
        sigmoids: The emitted tensors that are sigmoids, which multiply the channels of an image.
        free_norms: The batch norms that are folded into no layer, with the tensors that they read, where some of those
            can be quantized.
        version: The version of the JSON form.
        products: The products of two computed tensors, where they were asked for; otherwise they are unsupported.

    Example::

        >>> import bayesbits as bb
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
        >>> topology = bb.trace(model, torch.zeros(1, 3, 8, 8))
        >>> print(topology)
        layer  kind    weight    MACs  removable  channels feed
        0      conv    8x3x3x3  7,776     8 of 8  3
        3      linear  10x288   2,880    0 of 10  output
        10,656 MACs in 2 layers
        >>> topology.layer("0").macs, topology.group("0").consumers
        (7776, ('3',))
    """

    VERSION: ClassVar[int] = 2

    def __deepcopy__(self, memo: dict[int, Any]) -> Topology:
        return self  # it cannot change, and lists every channel

    layers: tuple[Layer, ...]
    """The weighted layers, in the order in which they first run."""
    activations: tuple[Activation, ...]
    """The tensors that the layers read, in the order of their first consumers, and then the operands of products."""
    additions: tuple[Addition, ...]
    """The residual additions, in the order in which they run."""
    emitted: tuple[str, ...]
    """The modules at whose outputs a quantizer lets the layer in front emit codes, although a float operation follows:
    a layer, its batch norm, or a clipping or pooling module behind them. And the modules that make the image and the
    sigmoid of squeeze and excitation, whose mean and product are computed from codes then."""
    shared_ranges: tuple[tuple[str, ...], ...]
    """Families of tensors that hold the same values, moved or concatenated: calibration gives them one range."""
    groups: tuple[ChannelGroup, ...]
    """All channels of all layers; the classes of the groups are 0, 1, 2, ... without gaps."""
    unsupported: tuple[Unsupported, ...]
    """The parts of the network that stay in float, with the reason."""
    output_layers: tuple[str, ...]
    """The layers whose output reaches the network's output without another weighted layer between."""
    other_parameters: int
    """Elements of parameters that belong to no layer here and to no layer's batch norm; they stay in float."""
    traced: bool
    """Whether torch.export could read the network; otherwise it was read by a run with hooks."""
    tables: tuple[Table, ...] = ()
    """The tables of embeddings that can be quantized, in the order in which they are first looked up, and then the
    weights of recurrent layers."""
    clips: tuple[Clip, ...] = ()
    """The emitted tensors that only clipping functions read, with their bounds."""
    hard_swishes: tuple[str, ...] = ()
    """The emitted tensors that only a hard-swish reads; a quantizer with a range from -3 on suits it."""
    sigmoids: tuple[str, ...] = ()
    """The emitted tensors that are sigmoids, which multiply the channels of an image: their range is [0, 1]."""
    version: int = VERSION
    """The version of the JSON form."""
    products: tuple[Product, ...] = ()
    """The products of two computed tensors, in running order, where they were asked for."""
    free_norms: tuple[FreeNorm, ...] = ()
    """The batch norms that are folded into no layer and read tensors that can be quantized, in running order."""

    def layer(self, name: str) -> Layer:
        """The layer of this name; otherwise a KeyError that lists the names."""
        return find_by_name(self._layers, name, "layer")

    def activation(self, name: str) -> Activation:
        """The activation of this name; otherwise a KeyError that lists the names."""
        return find_by_name(self._activations, name, "activation")

    def group(self, name: str) -> ChannelGroup:
        """The channel group of this name; otherwise a KeyError that lists the names."""
        return find_by_name(self._groups, name, "channel group")

    def group_of(self, channel: int) -> ChannelGroup:
        """The group that a channel class belongs to."""
        return self._group_of_channel[channel]

    @property
    def removable_groups(self) -> tuple[ChannelGroup, ...]:
        """The groups whose channels can be removed exactly."""
        return tuple(group for group in self.groups if group.removable)

    @property
    def channels(self) -> int:
        """The number of channel classes."""
        return sum(group.size for group in self.groups)

    @property
    def macs(self) -> int:
        """The multiply-accumulates of the network, those of unsupported parts included."""
        return sum(self.macs_of.values()) + sum(entry.macs for entry in self.unsupported)

    @cached_property
    def weight_tensors(self) -> dict[str, tuple[str, ...]]:
        """The layers of every weight tensor, by the parameter's name: several layers where weights are tied."""
        tensors: dict[str, tuple[str, ...]] = {}
        for layer in self.layers:
            tensors[layer.parameter] = (*tensors.get(layer.parameter, ()), layer.name)
        return tensors

    @cached_property
    def table_tensors(self) -> dict[str, Table]:
        """The tables by the names of their parameters."""
        return {table.parameter: table for table in self.tables}

    @cached_property
    def parameter_tensors(self) -> frozenset[str]:
        """The tensors that are stored and not computed: the weights of layers, and tables."""
        return frozenset((*self.weight_tensors, *self.table_tensors))

    @cached_property
    def macs_of(self) -> dict[str, int]:
        """The multiply-accumulates of every layer, product and weight of a recurrent layer, by its name."""
        macs = {layer.name: layer.macs for layer in self.layers}
        macs |= {product.name: product.macs for product in self.products}
        return macs | {table.name: table.macs for table in self.tables if table.kind == RECURRENT}

    @cached_property
    def product_tensors(self) -> dict[str, Product]:
        """The operands of products, by their names, with the product of each."""
        return {tensor: product for product in self.products for tensor in (product.left, product.right)}

    @cached_property
    def operand_tensors(self) -> dict[str, str]:
        """The operands of float operations that get a quantizer, named "module.output", with the module of each.

        They are the operands of additions, and the outputs of layers that other float operations read.
        """
        operands = (operand for addition in self.additions for operand in addition.operands)
        return {f"{operand}.output": operand for operand in (*operands, *self.emitted) if operand is not None}

    @cached_property
    def emitted_tensors(self) -> frozenset[str]:
        """Those of the operands that are outputs of layers in front of float operations other than additions."""
        return frozenset(f"{module}.output" for module in self.emitted)

    @cached_property
    def normalized_tensors(self) -> frozenset[str]:
        """The operands that only normalized additions have: by default they get no quantizer."""
        wanted = {name for addition in self.additions if not addition.normalized for name in addition.operands}
        names = {name for addition in self.additions if addition.normalized for name in addition.operands}
        return frozenset(f"{name}.output" for name in names - wanted if name is not None)

    @cached_property
    def pooled_tensors(self) -> frozenset[str]:
        """The operands that are inputs of max-pools with indices, which always have a quantizer."""
        pools = (addition.operands for addition in self.additions if len(addition.operands) == 1)
        return frozenset(f"{operand}.output" for (operand,) in pools if operand is not None)

    def __str__(self) -> str:
        head = ("layer", "kind", "weight", "MACs", "removable", "channels feed")
        lines = [text_table(head, map(self._cells, self.layers), left=(0, 1, 2, 5))]
        macs = sum(entry.macs for entry in self.unsupported)
        of_layers = sum(layer.macs for layer in self.layers)
        lines.append(f"{of_layers:,} MACs in {len(self.layers)} layers")
        if self.products:
            of_products = sum(product.macs for product in self.products)
            lines.append(f"{of_products:,} MACs in {len(self.products)} products of two activations:")
        lines += [f"  {product.name}: {product.left} x {product.right}, {product.macs:,}" for product in self.products]
        for table in self.tables:
            words = f"{table.name}: a table of {table.rows:,} x {table.columns:,} weights"
            lines.append(f"{words}, {table.macs:,} MACs in float" if table.kind == RECURRENT else words)
        if self.unsupported:
            lines.append(f"not supported, {macs:,} MACs at 32 bits:")
        for entry in self.unsupported:
            size = f" of {entry.macs:,} MACs" if entry.macs else ""
            lines.append(f"  {entry.name or 'the network'}: {entry.what}{size}: {entry.reason}")
        return "\n".join(lines)

    def _cells(self, layer: Layer) -> tuple[str, ...]:
        """A layer's row in the table of `print`."""
        groups = [self.group_of(channel) for channel in layer.out_channels]
        behind = set(list(self._layers)[list(self._layers).index(layer.name) + 1 :])
        feeds = list(dict.fromkeys(name for group in groups for name in group.consumers if name in behind))
        feeds += ["output"] if layer.name in self.output_layers else []
        return (
            layer.name,
            "depthwise conv" if layer.depthwise else layer.kind,
            "x".join(map(str, layer.weight_shape)),
            f"{layer.macs:,}",
            f"{sum(group.removable for group in groups)} of {len(groups)}",
            list_names(feeds),
        )

    @cached_property
    def _layers(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _activations(self) -> dict[str, Activation]:
        return {activation.name: activation for activation in self.activations}

    @cached_property
    def _groups(self) -> dict[str, ChannelGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _group_of_channel(self) -> dict[int, ChannelGroup]:
        return {channel: group for group in self.groups for channel in group.channels}
