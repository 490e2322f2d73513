"""Attaching: quantizers and gates put into the user's live network, in place.

Everything that learns is owned by one module, the `Attachment`, which hangs under the name `bayesbits` at the root of
the network (see `nn.network`). So the network's parameters keep their names, all new state lies under names of its own,
and a checkpoint of the float network still loads strictly. The layers refer to their parts (see `nn.attached`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.spec import Spec
from bayesbits.compression.spec_resolution import Choices, resolve_rules
from bayesbits.cost.bops import FLOAT_BITS
from bayesbits.nn import ChannelFollower, ChannelGate, GateBank, GatedQuantizer
from bayesbits.nn.attached import (
    AttachedLayer,
    AttachedNorm,
    Calibration,
    Output,
    Parts,
    QuantizedOutput,
    attach_output,
    attach_parts,
    detach,
)
from bayesbits.nn.exchange import Exchanged, check_restorable
from bayesbits.nn.network import NAME, attach_to_network
from bayesbits.records.topology import Layer, Topology
from bayesbits.utils.naming import key_of, name_of
from bayesbits.utils.torch_private import BatchNorm, is_compiled


class Attachment(nn.Module):
    """All quantizers and gates of a network, by the names of tensors and layers."""

    def __init__(self, topology: Topology, spec: Spec) -> None:
        super().__init__()
        self.topology, self.spec = topology, spec
        self.choices = resolve_rules(spec, topology)
        self.calibration = Calibration()
        self.corrected_biases: dict[str, Tensor] = {}  # what bias correction left, by the parameter's name
        self.swept_ranges: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None  # before and after post-training
        self.example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.tensors = nn.ModuleDict(
            {key_of(tensor): quantizer for tensor, quantizer in _quantizers(topology, spec, self.choices)}
        )
        self.channels = nn.ModuleDict({key_of(name): gate for name, gate in _gates(topology, spec, self.choices)})
        self.followers = nn.ModuleDict({key_of(name): gate for name, gate in _followers(topology, self.channel_gates)})
        learning = [q.gates for q in self.quantizers.values() if q.mode == "learning"]
        # Channels first: a compiler reads their values with large tensors, several at once where they are aligned.
        self.bank = GateBank([*(gate.gates for gate in self.channel_gates.values()), *learning])

    @property
    def calibrated(self) -> bool:
        """Whether the ranges of the activations are known."""
        return self.calibration.known

    @calibrated.setter
    def calibrated(self, known: bool) -> None:
        self.calibration.known = known

    @property
    def quantizers(self) -> Mapping[str, GatedQuantizer]:
        """Tensor name -> quantizer; tensors that stay in float are not there."""
        return {name_of(key): module for key, module in self.tensors.items()}  # type: ignore[misc]

    @property
    def channel_gates(self) -> Mapping[str, ChannelGate]:
        """Layer name -> gate of its output channels."""
        return {name_of(key): module for key, module in self.channels.items()}  # type: ignore[misc]

    def gate_of(self, layer: str) -> ChannelGate | ChannelFollower | None:
        """What gates a layer's output channels: its own gate, or for a depthwise layer its producers'."""
        if layer in self.channel_gates:
            return self.channel_gates[layer]
        followers = {name_of(key): module for key, module in self.followers.items()}
        return followers.get(layer)  # type: ignore[return-value]

    def learnable(self) -> dict[str, dict[str, nn.Parameter]]:
        """The groups "gates" and "ranges": what its mode lets learn, by name, frozen or not."""
        learning = {name: q.gates.logits for name, q in self.quantizers.items() if q.mode == "learning"}
        channels = {name: gate.gates.logits for name, gate in self.channel_gates.items() if not gate.fixed}
        return {
            "gates": learning | {f"the channels of {name}": logits for name, logits in channels.items()},
            "ranges": {name: q.log_beta for name, q in self.quantizers.items() if q.mode != "off" and q.learn_range},
        }

    @property
    def in_pass(self) -> bool:
        """Whether the network is in a forward pass."""
        return self.bank.present_pass.running

    def before_forward(self) -> None:
        """What the network does before each forward pass: draw all of its gates."""
        self.calibration.check()
        self.bank.draw()

    def after_forward(self) -> None:
        """What the network does after each forward pass."""
        self.bank.end_pass()

    def _apply(self, function: Any, recurse: bool = True) -> "Attachment":
        """Move with the network, but stay in single precision: gates, ranges and costs are too fine for half."""

        def move(tensor: Tensor) -> Tensor:
            moved: Tensor = function(tensor)
            return tensor.to(moved.device) if tensor.is_floating_point() else moved

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def get_extra_state(self) -> Tensor:
        """Whether ranges are known: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor(int(self.calibrated))

    def set_extra_state(self, state: Tensor) -> None:
        self.calibrated = bool(state.item())


class _PlainPath:
    """A forward pre-hook that does nothing: where one is, torch's fused transformer layer calls its modules.

    The fused one reads their weights and runs without them, and so without what is attached.
    """

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        return None


def check_intact(model: nn.Module, attachment: Attachment) -> None:
    """Raise where a module that has something attached was exchanged for another one after attaching."""
    modules = dict(model.named_modules(remove_duplicate=False))
    topology, quantizers = attachment.topology, attachment.quantizers
    for layer in topology.layers:
        if layer.name in attachment.choices.skipped:
            continue
        module = modules.get(layer.name)
        if not isinstance(module, AttachedLayer):
            raise _replaced(layer.name)
        if layer.norm is not None:
            norm = modules.get(layer.norm)
            if not isinstance(norm, AttachedNorm) or norm.parts.layer is not module:
                raise _replaced(layer.norm)
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


def find_attachment(model: nn.Module) -> Attachment | None:
    """What is attached to a network or to a part of it."""
    return next((module for module in model.modules() if isinstance(module, Attachment)), None)


def check_free(model: nn.Module) -> None:
    """Raise unless the network can take an attachment."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantizers are attached to an nn.Module, and this is a {type(model).__name__}")
    if is_compiled(model):
        raise ValueError("attach to the network itself and compile it afterwards: torch.compile(model) behind attach")
    if find_attachment(model) is not None:
        raise ValueError(
            "this network, or a part of it, has quantizers attached already: call compressor.detach() first"
        )
    if any(isinstance(module, Exchanged) for module in model.modules()):
        raise ValueError(
            "this is a part of a network that has quantizers attached: attach to the whole network, or call "
            "compressor.detach() first"
        )
    if hasattr(model, NAME):
        raise ValueError(f"the network has an attribute {NAME!r}, and that name is needed for what is attached")


def attach_to(model: nn.Module, topology: Topology, spec: Spec) -> Attachment:
    """Attach quantizers and gates to a network that `topology` describes."""
    attachment = Attachment(topology, spec)
    layers = [layer for layer in topology.layers if layer.name not in attachment.choices.skipped]
    if not layers:
        raise ValueError("the rules skip every layer of this network: there is nothing to attach to")
    for layer in layers:
        _attach_layer(model, layer, attachment)
    for tensor, module_name in topology.operand_tensors.items():
        if tensor in attachment.quantizers:
            output = Output(attachment.quantizers[tensor], module_name, attachment.calibration)
            attach_output(model.get_submodule(module_name), output)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.register_forward_pre_hook(_PlainPath())
    parameter = next(model.parameters())
    attachment.to(parameter.device)
    attachment.train(model.training)
    attach_to_network(model, attachment)
    return attachment


def detach_from(model: nn.Module) -> None:
    """Take everything away again that `attach_to` put there, or managed to put there before it failed."""
    modules = list(model.modules())
    for module in modules:
        check_restorable(module)
    for module in modules:
        detach(module)
        hooks = module._forward_pre_hooks
        for identifier in [identifier for identifier, hook in hooks.items() if isinstance(hook, _PlainPath)]:
            del hooks[identifier]
    model.__dict__.pop(NAME, None)


def _attach_layer(model: nn.Module, layer: Layer, attachment: Attachment) -> None:
    quantizers = attachment.quantizers
    module = model.get_submodule(layer.name)
    parts = Parts(
        weight=quantizers.get(layer.parameter),
        input=quantizers.get(layer.activation),
        gate=attachment.gate_of(layer.name),
        rounds_bias=layer.norm is None,
        calibration=attachment.calibration,
    )
    attach_parts(module, parts)
    if layer.norm is not None:
        norm = model.get_submodule(layer.norm)
        assert isinstance(norm, BatchNorm)
        assert isinstance(module, AttachedLayer)
        gate, parts.gate = parts.gate, None
        # Tied weights have one grid, and may have several batch norms; transposed groups have no axis to fold along.
        tied = len(attachment.topology.weight_tensors[layer.parameter]) > 1
        if not tied and (layer.kind != "conv_transpose" or layer.groups == 1):
            parts.norm = norm
        attach_parts(norm, Parts(gate=gate, layer=module))


def _quantizers(topology: Topology, spec: Spec, choices: Choices) -> Iterator[tuple[str, GatedQuantizer]]:
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    for tensor, widths in choices.widths.items():
        if widths == (FLOAT_BITS,):
            continue
        owners = topology.weight_tensors.get(tensor)
        layer = topology.layer(owners[0]) if owners else None
        # Axis 0 of a transposed convolution holds the inputs, and a range for each of those could not be deployed.
        per_channel = spec.per_channel_weights and layer is not None and layer.kind != "conv_transpose"
        rows = layer.weight_shape[0] if layer is not None and per_channel else None
        quantizer = GatedQuantizer(
            signed=owners is not None, beta=1.0 if rows is None else torch.ones(rows), bits=widths, gates=spec.gates,
            learn_range=tensor not in inputs or len(widths) > 1,
        )  # fmt: skip
        if len(widths) == 1:
            quantizer.fix(widths[0])
        yield tensor, quantizer


def _gates(topology: Topology, spec: Spec, choices: Choices) -> Iterator[tuple[str, ChannelGate]]:
    for layer in topology.layers:
        if layer.name in choices.prunable:
            removable = [topology.group_of(channel).removable for channel in layer.out_channels]
            yield layer.name, ChannelGate(len(removable), gates=spec.gates, may_close=removable)


def _followers(topology: Topology, gates: Mapping[str, ChannelGate]) -> Iterator[tuple[str, ChannelFollower]]:
    """For every depthwise layer behind gated producers a gate that follows theirs."""
    for layer in topology.layers:
        if not layer.depthwise:
            continue
        makers = {name for channel in layer.out_channels for name in topology.group_of(channel).producers}
        full = [other for other in topology.layers if other.name in makers and not other.depthwise]
        if not any(other.name in gates for other in full):
            continue
        sources = []
        for other in full:
            position = {channel: i for i, channel in enumerate(other.out_channels)}
            channels = [position.get(channel, -1) for channel in layer.out_channels]
            sources.append((gates.get(other.name), channels))
        yield layer.name, ChannelFollower(sources)
