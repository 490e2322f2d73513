"""A network whose parts are timed in onnxruntime: its layers, the conversions between them, and whole networks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayesbits.compression.attach import attach
from bayesbits.compression.attachment import Attachment
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.planning import channel_logits, decided_groups
from bayesbits.compression.spec import Spec
from bayesbits.cost import CostModel
from bayesbits.cost.latency import possible_forms
from bayesbits.deploy.modules import LAYERS
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.onnx.export import to_onnx
from bayesbits.deploy.onnx.latency import feeds_of
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.deploy.pipeline import deploy
from bayesbits.records.integer_network import IntegerLayer
from bayesbits.records.latency_table import LatencyTable, LayerShape, Overhead, conversion_row, kind_of
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Layer
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.naming import key_of

if TYPE_CHECKING:
    from onnx import ModelProto

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The parts of the removable channels that are kept where layers are timed; the least is one multiple."""
NETWORK_PARTS = (1.0, 0.5)
"""The parts that are kept where whole networks are timed."""
ALIGNED = 8
"""Numbers of channels are multiples of this where a layer has many."""
MOST_SECONDS = 0.3
"""The most that one row takes; large layers run fewer times."""


@dataclass(frozen=True)
class _Deployed:
    """A layer of the network, and how it was deployed."""

    layer: Layer
    integer: IntegerLayer
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    calls: int


class MeasuredNetwork:
    """A copy of a network with quantizers attached, which is deployed with several plans."""

    def __init__(self, model: nn.Module, example_inputs: Any, spec: Spec, threads: int) -> None:
        self.example, self.threads = example_inputs, threads
        with warnings.catch_warnings():  # times do not depend on ranges
            warnings.simplefilter("ignore")
            self._compressor = attach(model.eval(), example_inputs, replace(spec, penalty="paper", latency_table=None))
            self._compressor.calibrate([example_inputs])
        self._attachment = self._compressor.attachment
        self._widths = self._attachment.search_space.widths
        self._entries = list(self._deployed_layers())

    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers of the table."""
        return tuple(map(self._shape, self._entries))

    def plans(self) -> list[tuple[int, float, Plan]]:
        """The plans of the whole networks that are measured, each with its kind of activations and part of channels."""
        topology = self._attachment.topology
        kinds = {kind_of(w) for layer in topology.layers for w in self._widths.get(layer.activation, (32,))}
        parts = NETWORK_PARTS if decided_groups(self._attachment, channel_logits(self._attachment)) else (1.0,)
        return [(kind, part, self._plan(kind, part)) for kind in sorted(kinds) for part in parts]

    def models(self) -> dict[str, tuple[Any, ...]]:
        """For every row what makes its model."""
        made: dict[str, tuple[Any, ...]] = {}
        for entry, shape in zip(self._entries, self.shapes(), strict=True):
            for form in shape.forms:
                for inputs in shape.in_counts or (0,):
                    for outputs in shape.out_counts:
                        made.setdefault(shape.row(form, inputs, outputs), (entry, form, inputs or outputs, outputs))
            for what, x_shape in (("quantize", entry.y_shape), ("dequantize", entry.x_shape)):
                row = conversion_row(what, shape.conversions()[what], shape.image)
                made.setdefault(row, (what, (x_shape[0] * entry.calls, *x_shape[1:]), shape.image))
                made.setdefault(conversion_row(what, 1, image=False), (what, (1,), False))
        return made

    def seconds(self, *what_and_rounds: Any) -> float:
        """The seconds of a layer or a conversion, with those of the call."""
        from bayesbits.deploy.onnx.layer_models import conversion_model, example_of, layer_model, with_channels

        *what, rounds = what_and_rounds
        if isinstance(what[0], str):
            model = conversion_model(*what)
        else:
            entry, form, inputs, outputs = what
            axis = len(entry.x_shape) - (1 if entry.integer.kind == "linear" else len(entry.integer.weight_shape) - 1)
            x_shape = [*entry.x_shape[:axis], inputs, *entry.x_shape[axis + 1 :]]
            layer = with_channels(entry.integer, inputs, outputs)
            if layer is entry.integer:
                x_shape = list(entry.x_shape)
            model = layer_model(layer, form, x_shape)
        return _fastest(Session(model, threads=self.threads), example_of(model), rounds)

    def call_seconds(self, rounds: int) -> float:
        """The seconds of a call of a model that does nothing."""
        from bayesbits.deploy.onnx.layer_models import empty_model, example_of

        model = empty_model()
        return Session(model, threads=self.threads).fastest(example_of(model), max(100, rounds))

    def overheads(self, table: LatencyTable, rounds: int, advance: Any) -> Iterator[Overhead]:
        """What the whole networks take beyond their layers, by a table that has all rows."""
        zero = tuple(Overhead(kind, 1.0, 0.0, 0.0) for kind, _, _ in self.plans())
        without = replace(table, overheads=zero)
        model = CostModel(self._attachment.topology)
        for kind, part, plan in self.plans():
            small = self._deploy(plan)
            file = to_onnx(small, self.example, "fast")
            milliseconds = network_ms(file, small, self.example, threads=self.threads, rounds=rounds)
            cost = model.count(plan, without)
            assert cost.latency_ms is not None
            kept = torch.tensor([float(layer.kept_in) for layer in cost.layers], dtype=torch.float64)
            share = model.latency_model(without).kept_share(kept).item()
            yield Overhead(kind, share, milliseconds, milliseconds - cost.latency_ms)
            advance(f"the network at {kind} bits, {part:.0%} of the channels")

    def _deploy(self, plan: Plan) -> DeployedNetwork:
        fixed = Compressor(copy.deepcopy(self._compressor.model))
        fixed.fix(plan)
        return deploy(fixed)

    def _deployed_layers(self) -> Iterator[_Deployed]:
        small = self._deploy(self._plan(8, 1.0))
        shapes: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}

        def record(name: str) -> Any:
            def hook(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
                shapes.setdefault(name, []).append((tuple(args[0].shape), tuple(output.shape)))

            return hook

        layers = small.program.get_submodule(LAYERS)
        for layer in small.integer.layers:
            layers.get_submodule(key_of(layer.name)).register_forward_hook(record(layer.name))
        args, kwargs = split_inputs(self.example)
        with torch.no_grad():
            small(*args, **kwargs)
        for own in self._attachment.topology.layers:
            calls = shapes[own.name]
            yield _Deployed(own, small.integer.layer(own.name), *calls[0], len(calls))

    def _shape(self, entry: _Deployed) -> LayerShape:
        layer, integer = entry.layer, entry.integer
        free = _free_channels(self._attachment)
        emits = integer.output
        ins = () if layer.depthwise else self._counts(layer.in_channels, free)
        numbers = (integer.kind, integer.weight_shape[2:], integer.stride, integer.padding, integer.dilation)
        kernel = " ".join(str(part) for part in (*numbers, *integer.output_padding))
        grouped = f" groups {integer.groups}" if integer.groups > 1 and not layer.depthwise else ""
        return LayerShape(
            name=layer.name,
            kernel=f"{'depthwise ' if layer.depthwise else ''}{kernel}{grouped} of {entry.x_shape}".replace(",", ""),
            weight_shape=layer.weight_shape,
            macs=layer.macs,
            forms=possible_forms(layer, emits, self._widths),
            emits=emits,
            in_counts=ins,
            out_counts=self._counts(layer.out_channels, free),
            in_elements=prod(entry.x_shape) * entry.calls,
            out_elements=prod(entry.y_shape) * entry.calls,
            image=layer.kind == "conv" and len(entry.x_shape) == len(layer.weight_shape),
            calls=entry.calls,
        )

    def _counts(self, channels: Sequence[int], free: frozenset[int]) -> tuple[int, ...]:
        """The numbers of channels to measure, of those of one side of a layer."""
        full = len(channels)
        removable = sum(channel in free for channel in channels)
        least = max(1, full - removable)
        aligned = ALIGNED if full >= 4 * ALIGNED else 1
        counts = {min(full, max(least, round((full - removable * (1 - part)) / aligned) * aligned)) for part in PARTS}
        return tuple(sorted(counts | {full}))

    def _plan(self, kind: int, part: float) -> Plan:
        """All activations of one kind, and a part of every group of channels; narrow widths alternate with 8 bits."""
        topology = self._attachment.topology
        bits = dict(Plan.uniform(topology, 32, 32, 32, residual_bits=None).bits)
        activations = 0
        for name, widths in self._widths.items():
            if name not in self._attachment.quantizers:
                continue
            nearest = min(widths, key=lambda width: abs(width - kind))
            same = [width for width in widths if kind_of(width) == kind] or [nearest]
            activations += name not in topology.parameter_tensors
            bits[name] = same[-1] if activations % 2 else same[len(same) // 2 - 1]
        multiple = max(ALIGNED, self._attachment.spec.channel_multiple)
        gone: set[int] = set()
        for entry in decided_groups(self._attachment, channel_logits(self._attachment)):
            aligned = multiple if entry.group.size >= 4 * multiple else 1
            keep = entry.allowed(max(1, round(entry.group.size * part / aligned) * aligned), aligned)
            gone.update(entry.group.channels[keep:])
        return Plan(bits).without(topology, gone)


def network_ms(
    model: ModelProto | str | Path, small: DeployedNetwork, example_inputs: Any, *, threads: int, rounds: int = 30
) -> float:
    """The milliseconds of one call of a network's file, in the fastest of some runs."""
    batched = zip(small.bind(*split_inputs(example_inputs)), small.integer.structure.batched, strict=True)
    batch = next((tensor.shape[0] for tensor, is_batched in batched if is_batched), 1)
    return 1e3 * _fastest(Session(model, threads=threads), feeds_of(small, example_inputs, batch), rounds)


def _fastest(session: Session, feeds: Mapping[str, Any], rounds: int) -> float:
    once = session.fastest(feeds, 2)
    return min(once, session.fastest(feeds, max(3, min(rounds, int(MOST_SECONDS / max(once, 1e-6))))))


def _free_channels(attachment: Attachment) -> frozenset[int]:
    """The channel classes that gates may remove."""
    groups = decided_groups(attachment, channel_logits(attachment))
    return frozenset(channel for entry in groups for channel in entry.group.channels)
