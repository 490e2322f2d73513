"""Reading a network that torch.export cannot take, by a plain run with hooks.

Such a run sees the weighted layers, their MACs, and which of them read the same tensor. It does not see the operations
between layers. So no batch norm is paired with a layer, no channel is removable, the output layers are not known, and
all other MACs but those of recurrent layers are one number; the topology says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from bayesbits.cost.macs import MacCounter, layer_macs, recurrent_macs
from bayesbits.graph.flat_network import returned_tensors
from bayesbits.graph.layers import layer_kind, other_parameters, weight_of
from bayesbits.graph.symbolic_sizes import in_users_code, in_words
from bayesbits.records.topology import Activation, ChannelGroup, Layer, Topology, Unsupported
from bayesbits.utils.modes import evaluation_mode
from bayesbits.utils.pytree import tensors_in

COMPUTED = "computed weight"
COMPUTED_REASON = (
    "its weight is no parameter but computed in every pass, as by weight norm; "
    'torch.nn.utils.parametrize.remove_parametrizations(module, "weight") makes it one'
)
REASON = "the network could not be traced, so the paths of its channels are not known"
RECURRENT_REASON = (
    "its weights stay in float, as torch.export cannot take the network; sequences of one length in place of a "
    "PackedSequence often let it"
)


@dataclass
class _Seen:
    """One layer, as the hooks saw it."""

    module: nn.Module
    kind: str
    calls: int = 0
    macs: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    """The inputs, held until the run is over, so that equal ids mean the same tensor."""


def trace_with_hooks(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Topology:
    """The topology of a network for which torch.export raised `error`; raises what the network itself raises."""
    parameters = {id(parameter): name for name, parameter in model.named_parameters()}
    recurrent = _Recurrent()
    seen, macs = _run(model, args, kwargs, recurrent)
    names = [name for name, record in seen.items() if id(weight_of(record.module)) not in parameters]
    computed = {name: seen.pop(name) for name in names}  # weight and spectral norm compute it again in every run
    floats = [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point()]
    activations = _activations(seen, floats)
    reads = {name: activation.name for activation in activations for name in activation.consumers}
    layers: list[Layer] = []
    groups: list[ChannelGroup] = []
    for name, record in seen.items():
        layer = _layer(name, record, parameters[id(weight_of(record.module))], reads[name], sum(g.size for g in groups))
        layers.append(layer)
        groups += [
            ChannelGroup(f"input of {name}", layer.in_channels[0], len(layer.in_channels), (), (name,), REASON),
            ChannelGroup(name, layer.out_channels[0], len(layer.out_channels), (name,), (), REASON),
        ]
    known = sum(layer.macs for layer in layers) + sum(record.macs for record in computed.values())
    return Topology(
        layers=tuple(layers),
        activations=activations,
        additions=(),
        emitted=(),
        shared_ranges=(),
        groups=tuple(groups),
        unsupported=(
            _unsupported(error, macs - known - recurrent.counted),
            *recurrent.entries.values(),
            *(Unsupported(name, COMPUTED, record.macs, COMPUTED_REASON) for name, record in computed.items()),
        ),
        output_layers=(),
        other_parameters=other_parameters(model, (), [layer.name for layer in layers]),
        traced=False,
    )


@dataclass
class _Recurrent:
    """The recurrent layers, which hooks around their calls find."""

    entries: dict[str, Unsupported] = field(default_factory=dict)
    counted: int = 0
    """How many of their MACs torch counts itself; some of its kernels it does not know."""

    def watch(self, name: str, module: nn.RNNBase, counter: MacCounter) -> list[RemovableHandle]:
        """Note the calls of a module."""
        before: list[int] = []

        def enter(module: nn.Module, args: Any) -> None:
            before.append(counter.macs)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            (data,) = (*args, *kwargs.values())[:1]
            matrices = [parameter.shape for parameter in module.parameters() if parameter.dim() == 2]
            macs = recurrent_macs((data.data if isinstance(data, PackedSequence) else data).shape, matrices)
            entry = self.entries.get(name)
            macs += 0 if entry is None else entry.macs
            self.entries[name] = Unsupported(name, type(module).__name__, macs, RECURRENT_REASON)
            self.counted += counter.macs - before.pop()

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, with_kwargs=True)]


def _run(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recurrent: _Recurrent
) -> tuple[dict[str, _Seen], int]:
    """Run the network once in evaluation mode; returns its layers in running order, and all MACs that torch counts."""
    seen: dict[str, _Seen] = {}
    handles = []
    counter = MacCounter()
    for name, module in model.named_modules():
        kind = layer_kind(module)
        if isinstance(module, nn.RNNBase):
            handles += recurrent.watch(name, module, counter)
        if kind is None:
            continue

        def record(
            module: nn.Module, args: Any, kwargs: Any, output: Tensor, name: str = name, kind: str = kind
        ) -> None:
            (data,) = (*args, *kwargs.values())[:1]
            entry = seen.setdefault(name, _Seen(module, kind))
            entry.calls += 1
            entry.macs += layer_macs(kind, weight_of(module).shape, data.shape, output.shape)
            entry.tensors.append(data)

        handles.append(module.register_forward_hook(record, with_kwargs=True))
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with (
            evaluation_mode(model),
            torch.random.fork_rng(devices=list(devices)),
            torch.no_grad(),
            counter,
        ):
            returned_tensors(model(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return seen, counter.macs


def _activations(seen: dict[str, _Seen], inputs: list[Tensor]) -> tuple[Activation, ...]:
    """One activation per layer; layers that read the same tensor share one."""
    members: list[tuple[list[str], set[int]]] = []
    for name, record in seen.items():
        names, tensors = [name], {id(tensor) for tensor in record.tensors}
        for other in [entry for entry in members if entry[1] & tensors]:
            members.remove(other)
            names, tensors = other[0] + names, other[1] | tensors
        members.append((names, tensors))
    order = {name: index for index, name in enumerate(seen)}
    members.sort(key=lambda entry: min(order[name] for name in entry[0]))
    given = {id(tensor) for tensor in inputs}
    return tuple(
        Activation(
            f"{min(names, key=order.__getitem__)}.input", tuple(sorted(names, key=order.__getitem__)), tensors <= given
        )
        for names, tensors in members
    )


def _layer(name: str, record: _Seen, parameter: str, activation: str, first: int) -> Layer:
    weight_shape = tuple(weight_of(record.module).shape)
    groups = int(getattr(record.module, "groups", 1))
    transposed = record.kind == "conv_transpose"
    inputs = weight_shape[0] if transposed else weight_shape[1] * groups
    outputs = weight_shape[1] * groups if transposed else weight_shape[0]
    return Layer(
        name=name,
        kind=record.kind,
        parameter=parameter,
        weight_shape=weight_shape,
        groups=groups,
        bias=record.module.bias is not None,
        calls=record.calls,
        macs=record.macs,
        norm=None,
        activation=activation,
        in_channels=tuple(range(first, first + inputs)),
        out_channels=tuple(range(first + inputs, first + inputs + outputs)),
        depthwise=groups > 1 and groups == inputs == outputs,
    )


def _unsupported(error: Exception, macs: int) -> Unsupported:
    """The message of torch.export, shortened, with the MACs that no layer accounts for."""
    text = str(error).strip().partition("\n")[0]
    frames = [frame for frame in extract_tb(error.__traceback__) if in_users_code(frame.filename)]
    place = f" at {in_words(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)}" if frames else ""
    reason = f"torch.export cannot take it{place} ({type(error).__name__}: {text[:300]}); read by a run with hooks"
    return Unsupported("", "untraced network", max(macs, 0), reason)
