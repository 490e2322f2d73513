"""What is attached to a network: its quantizers and gates, chosen by topology and spec, with their cost and penalty.

Everything that learns is owned by one module, the `Attachment`, which hangs under the name `bayesbits` at the root of
the network (see `nn.network`). So the network's parameters keep their names, all new state lies under names of its own,
and a checkpoint of the float network still loads strictly. `compression.attach` puts it there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.penalties import make_penalty
from bayesbits.compression.penalty_base import Penalty
from bayesbits.compression.search_space import SearchSpace, find_search_space
from bayesbits.compression.spec import Spec
from bayesbits.compression.table_files import as_table
from bayesbits.compression.width_penalty import WidthPenalty
from bayesbits.cost import CostModel
from bayesbits.cost.size import STEP_BYTES
from bayesbits.functional.grid import INTEGER_BITS
from bayesbits.methods import METHODS, Method, MethodQuantizer
from bayesbits.methods.reinforce import ScoreFunction
from bayesbits.nn import ChannelFollower, ChannelGate, GatedQuantizer, KnownRangeQuantizer, Quantizer
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.class_exchange import check_restorable, restore_class
from bayesbits.nn.dynamic_quantizer import DynamicQuantizer
from bayesbits.nn.grouping import group_count
from bayesbits.nn.hard_swish_quantizer import HardSwishQuantizer
from bayesbits.nn.instance_norm import AttachedInstanceNorm
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.network_quantizers import NetworkQuantizers
from bayesbits.nn.quantized_output import QuantizedOutput
from bayesbits.nn.steady_channels import ChannelRun, SteadyChannels
from bayesbits.nn.table import AttachedTable
from bayesbits.nn.weight_product import attached_activation_products, attached_products
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import EMBEDDING, ChannelGroup, Layer, Topology
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.torch_private import tree_map_only

LONG_ROW = 64
"""From so many columns on, every row of a table of embeddings has a range of its own in any case: its step is half a
bit for each weight at most, no kernel is slower for it, and one range for the rows of all words is far too coarse."""


class Attachment(NetworkQuantizers):
    """The quantizers and gates of a network, what they were made for, and what they cost.

    Cost model and penalties are children, so that their constants move with the network; none has state of its own.
    """

    def __init__(self, topology: Topology, spec: Spec, example_inputs: Any) -> None:
        search_space = find_search_space(spec, topology)
        gates, quantizers = _channel_gates(topology, spec, search_space), _quantizers(topology, spec, search_space)
        super().__init__(quantizers, gates, _followers(topology, gates), _steady_channels(topology, quantizers))
        self.topology, self.spec, self.search_space = topology, spec, search_space
        self.example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = tree_map_only(
            Tensor, Tensor.detach, split_inputs(example_inputs)
        )
        self.score_function = ScoreFunction() if self.method is METHODS["reinforce"] else None
        self.notes: dict[str, Any] = {}
        """What other parts of the library remember with the live network, under keys of their own. Copies of the
        network have it too, and no state_dict has it."""
        self.cost_model = CostModel(topology, _step_bytes(topology, spec))
        self.penalty: nn.Module = self._penalty(spec.penalty, as_table(spec.latency_table, "Spec.latency_table"))
        self.expected_bops = self._penalty("expected_bops")
        self.expected_bytes = self._penalty("expected_bytes")

    @property
    def method(self) -> Method:
        """How tensors are quantized."""
        return METHODS[self.spec.method]

    @property
    def folds(self) -> bool:
        """Whether weights are rounded with the batch norm behind them folded in, wherever that can be done."""
        return self.method.folds and self.spec.fold_batch_norm

    def group_size(self, parameter: str) -> int | None:
        """How many neighboring inputs share a range of this weight; None where all inputs of an output do."""
        layer = self.topology.layer(self.topology.weight_tensors[parameter][0])
        return self.spec.group_size if layer.kind == "linear" and parameter in self.quantizers else None

    def method_loss(self, loss: Tensor) -> Tensor | None:
        """What the method adds to the loss beside the penalty, such as the decay of PACT; None where it is nothing."""
        if self.score_function is not None:
            learning = any(parameter.requires_grad for parameter in self.learnable()["gates"].values())
            return self.score_function(loss, self.bank) if learning else None
        total = None
        for quantizer in self.quantizers.values():
            if isinstance(quantizer, MethodQuantizer) and quantizer.mode != "off":
                term = quantizer.regularizer()
                if term is not None:
                    total = term if total is None else total + term
        return total

    def expected_latency(self, table: LatencyTable) -> Penalty | WidthPenalty:
        """The expected milliseconds by a table."""
        return self._penalty("expected_latency", table)

    def _penalty(self, kind: str, table: LatencyTable | None = None) -> Penalty | WidthPenalty:
        if self.method.learns_widths and not self.method.gated:
            return WidthPenalty(self.topology, self.quantizers, self.cost_model, kind)
        return make_penalty(
            self.topology, self.quantizers, self.channel_gates, kind,
            num_examples=self.spec.num_examples, cost_model=self.cost_model, table=table,
        )  # fmt: skip


def find_attachment(model: nn.Module) -> Attachment | None:
    """The attachment of a network or of a part of it; None where there is none."""
    return next((module for module in model.modules() if isinstance(module, Attachment)), None)


def check_intact(model: nn.Module, attachment: Attachment) -> None:
    """Raise where a module that has something attached was replaced by another one after attaching."""
    modules = dict(model.named_modules(remove_duplicate=False))
    products = attached_products(model)
    topology, quantizers = attachment.topology, attachment.quantizers
    for layer in topology.layers:
        if layer.name in attachment.search_space.skipped:
            continue
        module = products.get(layer.name) or modules.get(layer.name)
        if not isinstance(module, AttachedLayer):
            raise _replaced(layer.name)
        if layer.norm is not None:
            norm = modules.get(layer.norm)
            if not isinstance(norm, AttachedBatchNorm) or norm.parts.layer is not module:
                raise _replaced(layer.norm)
        gate = attachment.gate_of(layer.name)
        if layer.instance_norm is not None and gate is not None:
            behind = modules.get(layer.instance_norm)
            if not isinstance(behind, AttachedInstanceNorm) or behind.parts.gate is not gate:
                raise _replaced(layer.instance_norm)
    for name, channels in attachment.steady_channels.items():
        norm = modules.get(name)
        if not isinstance(norm, AttachedBatchNorm) or norm.parts.steady is not channels:
            raise _replaced(name)
    for tensor, table in topology.table_tensors.items():
        for name in table.modules if tensor in quantizers else ():
            module = modules.get(name)
            attached = module.bayesbits_table.quantizers if isinstance(module, AttachedTable) else {}
            if attached.get(table.attribute) is not quantizers[tensor]:
                raise _replaced(name)
    multiplied = attached_activation_products(model)
    for product in topology.products:
        if product.name not in multiplied:
            raise _replaced(product.name)
    for tensor, name in topology.operand_tensors.items():
        if tensor in quantizers:
            module = modules.get(name)
            if not isinstance(module, QuantizedOutput) or module.bayesbits_output.quantizer is not quantizers[tensor]:
                raise _replaced(name)


def _replaced(name: str) -> ValueError:
    return ValueError(
        f"{name or 'the network'} was replaced after attaching, and has nothing attached to it: "
        "detach, change the network, and attach again"
    )


def detach_from(model: nn.Module) -> None:
    """Make a network the float network again, also where attaching failed half-way."""
    modules = list(model.modules())
    for module in modules:
        check_restorable(module)
    for module in modules:
        restore_class(module)


def _quantizers(topology: Topology, spec: Spec, search_space: SearchSpace) -> dict[str, Quantizer]:
    """A quantizer for every tensor that does not stay in float, by the tensor's name."""
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    method = METHODS[spec.method]
    quantizers: dict[str, Quantizer] = {}
    for tensor, widths in search_space.widths.items():
        if widths == (FLOAT_BITS,):
            continue
        if tensor in search_space.dynamic:
            quantizers[tensor] = DynamicQuantizer()
            continue
        owners = topology.weight_tensors.get(tensor)
        made = method.weights if owners else method.activations
        if made is not None and made.only_bits is not None and widths != (made.only_bits,):
            made = None  # of another width, which a rule or the spec gives the layer
        others = topology.operand_tensors.keys() | topology.table_tensors.keys()
        if made is not None and tensor not in inputs and tensor not in others:
            quantizers[tensor] = made(weight=owners is not None, bits=widths)
        else:
            learns = made is None and (tensor not in inputs or len(widths) > 1)
            quantizers[tensor] = _gated_quantizer(topology, spec, tensor, widths, learn_range=learns)
        if len(widths) == 1:
            quantizers[tensor].fix(widths[0])
    return quantizers


def _gated_quantizer(
    topology: Topology, spec: Spec, tensor: str, widths: tuple[int, ...], *, learn_range: bool
) -> GatedQuantizer:
    owners = topology.weight_tensors.get(tensor)
    layer = topology.layer(owners[0]) if owners else None
    computed = tensor not in topology.parameter_tensors and tensor not in topology.operand_tensors
    known = topology.activation(tensor).known_range if computed else 1.0 if tensor in topology.sigmoids else None
    gates = METHODS[spec.method].gates or spec.gates
    if tensor in topology.hard_swishes and widths == (INTEGER_BITS,) and spec.asymmetric_activations:
        return HardSwishQuantizer(gates=gates, learn_range=learn_range)
    if known is not None:
        return KnownRangeQuantizer(signed=False, beta=known, bits=widths, gates=gates, learn_range=False)
    # Axis 0 of a transposed convolution holds the inputs, and a range for each of those could not be deployed.
    per_channel = spec.per_channel_weights and layer is not None and layer.kind != "conv_transpose"
    rows = layer.weight_shape[0] if layer is not None and per_channel else None
    if layer is not None and spec.group_size is not None and layer.kind == "linear":
        rows = layer.weight_shape[0] * group_count(layer.weight_shape[1], spec.group_size)
    table = topology.table_tensors.get(tensor)
    if table is not None and (spec.per_channel_weights or (table.kind == EMBEDDING and table.columns >= LONG_ROW)):
        rows = table.rows
    stored = tensor in topology.parameter_tensors
    return GatedQuantizer(
        signed=stored, beta=1.0 if rows is None else torch.ones(rows), bits=widths,
        gates=gates, learn_range=learn_range,
        asymmetric=not stored and spec.asymmetric_activations,
    )  # fmt: skip


def _steady_channels(topology: Topology, quantizers: Mapping[str, Quantizer]) -> dict[str, SteadyChannels]:
    """For every batch norm that is folded into no layer the channels that it reads, if any of them are rounded."""
    found = {}
    for norm in topology.free_norms:
        runs = [
            ChannelRun(tuple(quantizers[name] for name in run.tensors if name in quantizers), run.size)
            for run in norm.inputs
        ]
        if any(run.quantizers for run in runs):
            found[norm.name] = SteadyChannels(runs)
    return found


def _step_bytes(topology: Topology, spec: Spec) -> dict[str, int]:
    """The bytes of the steps of weights in groups, which are many, by the name of the weight."""
    if spec.group_size is None:
        return {}
    linear = [layer for layer in topology.layers if layer.kind == "linear"]
    counts = {one.parameter: one.weight_shape[0] * group_count(one.weight_shape[1], spec.group_size) for one in linear}
    return {parameter: STEP_BYTES * count for parameter, count in counts.items()}


def _channel_gates(topology: Topology, spec: Spec, search_space: SearchSpace) -> dict[str, ChannelGate]:
    """A gate for every layer whose channels may be removed, by the layer's name."""
    gates, kind = {}, METHODS[spec.method].gates or spec.gates
    for layer in topology.layers:
        if layer.name in search_space.prunable:
            groups = [topology.group_of(channel) for channel in layer.out_channels]
            deciding = frozenset(layer.deciding)
            gates[layer.name] = ChannelGate(
                len(groups),
                gates=kind,
                may_close=[group.removable for group in groups],
                blocks=_blocks(layer, groups),
                deciding=[index in deciding for index in range(len(groups))],
            )
    return gates


def _blocks(layer: Layer, groups: Sequence[ChannelGroup]) -> list[int]:
    """A number for every output channel, equal for those of a head: they have one gate."""
    channels = zip(layer.out_channels, groups, strict=True)
    return [channel if group.block > 1 else -index for index, (channel, group) in enumerate(channels, start=1)]


def _followers(topology: Topology, gates: Mapping[str, ChannelGate]) -> dict[str, ChannelFollower]:
    """For every layer that follows gated ones a gate that follows theirs, by the layer's name.

    A depthwise layer follows the producers of its channels, and layers of queries and keys follow that of the values.
    """
    followers = {}
    for layer in topology.layers:
        if layer.deciding:
            continue
        makers = {name for channel in layer.out_channels for name in topology.group_of(channel).producers}
        full = [other for other in topology.layers if other.name in makers and other.deciding]
        if not any(other.name in gates for other in full):
            continue
        sources = []
        for other in full:
            position = {other.out_channels[index]: index for index in other.deciding}
            channels = [position.get(channel, -1) for channel in layer.out_channels]
            sources.append((gates.get(other.name), channels))
        followers[layer.name] = ChannelFollower(sources, when_fixed=not layer.depthwise)
    return followers
