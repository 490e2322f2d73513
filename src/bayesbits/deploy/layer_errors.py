"""The errors of the deployed network, layer by layer, against the network without rounding.

They are what `compression.statistics` measures of the simulation, of the integers themselves: a layer alone, which is
given the float network's input in codes, and a layer in the deployed network, with everything in front of it. Channels
that were removed are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.compression.observers import network_restored
from bayesbits.compression.signal_to_noise import SignalToNoise, sample, sample_of
from bayesbits.deploy.layer_weights import remaining_channels
from bayesbits.deploy.modules import LAYERS, Dequantize, Quantize, make_layer, target_of
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.inputs import Inputs
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork
from bayesbits.records.tensor_statistics import LayerError
from bayesbits.records.topology import Layer
from bayesbits.utils.pytree import describe


def measure_deployed_errors(
    compressor: Compressor, small: DeployedNetwork, inputs: Any
) -> tuple[tuple[LayerError, ...], float | None]:
    """The errors of all layers in the order in which they run, and the signal-to-noise ratio of the output in dB.

    Args:
        compressor: A network with a plan that is fixed, on the CPU; it stays as it is.
        small: The network that :func:`bayesbits.deploy` made of it.
        inputs: What the network is called with: a tensor, a tuple or a dict. A few examples are enough.
    """
    topology, removed = compressor.topology, compressor.plan().removed(compressor.topology)
    deployed = {layer.name: layer for layer in small.integer.layers}
    layers = [
        _DeployedLayer(small.integer, deployed[layer.name], layer, removed)
        for layer in topology.layers
        if layer.name in deployed
    ]
    output = SignalToNoise()
    with network_restored(compressor.model), torch.no_grad():
        compressor.model.eval()
        for quantizer in compressor.attachment.quantizers.values():
            quantizer.turn_off()
        for batch in Inputs(inputs, small).batches():
            float_outputs: list[Tensor] = []
            with _Hooks() as hooks:
                for one in layers:
                    one.watch_float(compressor.model, hooks)
                describe(compressor.model(*batch.args, **batch.kwargs), float_outputs)
            with _Hooks() as hooks:
                for one in layers:
                    one.watch_deployed(small, hooks)
                outputs = small.program(*small.bind(batch.args, batch.kwargs))
            output.compare(sample_of(float_outputs), sample_of(list(outputs)))
    return tuple(one.error() for one in layers if one.measured), output.decibel


class _DeployedLayer:
    """One layer of the deployed network, which computes numbers instead of the codes of the next grid."""

    def __init__(self, network: IntegerNetwork, layer: IntegerLayer, source: Layer, removed: frozenset[int]) -> None:
        self.source = source
        self._module = make_layer(network, replace(layer, output=None))
        grid = None if layer.input is None else network.grid(layer.input)
        self._quantize: list[nn.Module] = []
        if grid is not None and grid.carrier is not None:
            self._quantize = [Quantize(grid)] + ([Dequantize(grid)] if layer.arithmetic == "float" else [])
        self._axis = -1 if layer.kind == "linear" else 1 - len(layer.weight_shape)
        self._inputs, self._outputs = (
            remaining_channels(channels, removed) for channels in (source.in_channels, source.out_channels)
        )
        self._input: Tensor | None = None
        self._float_outputs: list[Tensor] = []  # of the calls in one forward pass
        self._alone, self._together = SignalToNoise(), SignalToNoise()
        self.measured = False

    def error(self) -> LayerError:
        return LayerError(self.source.name, self._alone.decibel, self._together.decibel)

    def watch_float(self, model: nn.Module, hooks: _Hooks) -> None:
        """Compare this layer alone with the float network when that runs."""
        self._float_outputs = []
        module = find_layer(model, self.source.name)
        hooks.add(module.register_forward_pre_hook(self._keep_input))
        emitting = module if self.source.norm is None else model.get_submodule(self.source.norm)
        hooks.add(emitting.register_forward_hook(self._compare_alone))

    def watch_deployed(self, small: DeployedNetwork, hooks: _Hooks) -> None:
        """Compare this layer with the float network when the deployed network runs."""
        module = small.program.get_submodule(target_of(LAYERS, self.source.name))
        calls = iter(self._float_outputs)
        hooks.add(module.register_forward_pre_hook(partial(self._compare_together, lambda: next(calls, None))))

    def _keep_input(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self._input = args[0]

    def _compare_alone(self, _: nn.Module, args: Any, output: Tensor) -> None:
        exact = sample(output.index_select(self._axis, self._outputs))
        self._float_outputs.append(exact)
        assert self._input is not None
        x = self._input.index_select(self._axis, self._inputs)
        for step in self._quantize:
            x = step(x)
        self._alone.compare(exact, sample(self._module(x)))
        self.measured = True

    def _compare_together(self, exact: Callable[[], Tensor | None], _: nn.Module, args: tuple[Any, ...]) -> None:
        found = exact()
        if found is not None:
            self._together.compare(found, sample(self._module(args[0])))


class _Hooks:
    """Hooks that are removed at the end of a block."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, handle: Any) -> None:
        self._handles.append(handle)

    def __enter__(self) -> _Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
