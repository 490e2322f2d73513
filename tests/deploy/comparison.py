"""Plans with removed channels, and the codes of simulation and deployed network, for the tests of deployment."""

import random
from typing import Any

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn.weight_product import find_layer
from bayesbits.records.topology import Topology
from bayesbits.utils.naming import key_of


def mixed_plan(
    topology: Topology,
    *,
    bits: tuple[int, ...] = (2, 4, 8),
    drop: float = 0.3,
    seed: int = 0,
    operands: bool = True,
) -> bb.Plan:
    """Random widths, and a random part of every removable group dropped by all of its producers."""
    choose = random.Random(seed)
    widths = {tensor: choose.choice(bits) for tensor in bb.Plan.uniform(topology, residual_bits=None).bits}
    widths |= {activation.name: 8 for activation in topology.activations if activation.network_input}
    widths |= dict.fromkeys(topology.operand_tensors if operands else (), 8)
    gone = {
        channel
        for group in topology.removable_groups
        for channel in choose.sample(list(group.channels), int(group.size * drop))
    }
    return bb.Plan(widths).without(topology, gone)


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The first tensor that a network returns."""
    with torch.no_grad():
        if isinstance(inputs, dict):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    return output if isinstance(output, Tensor) else output["logits"]


def input_codes(compressor: bb.Compressor, small: bb.DeployedNetwork, inputs: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """The codes that every integer layer reads that runs once, in the simulation (channels cut) and as deployed."""
    simulated: dict[str, list[Tensor]] = {}
    deployed: dict[str, Tensor] = {}
    handles = []
    removed = set(small.integer.structure.removed)
    for layer in small.integer.layers:
        if layer.arithmetic != "integer":
            continue
        traced = compressor.topology.layer(layer.name)
        stays = [index for index, channel in enumerate(traced.in_channels) if channel not in removed]
        spatial = 0 if layer.kind == "linear" else len(layer.weight_shape) - 2

        def simulate(module: Any, args: Any, name: str = layer.name, stays: Any = stays, axes: int = spatial) -> None:
            codes = module.parts.input.codes(args[0])
            cut = codes.index_select(codes.dim() - 1 - axes, torch.tensor(stays))
            simulated.setdefault(name, []).append(cut.float())

        def run(module: Any, args: Any, name: str = layer.name) -> None:
            deployed[name] = args[0]

        handles.append(find_layer(compressor.model, layer.name).register_forward_pre_hook(simulate))
        executed = small.program.get_submodule(f"layers.{key_of(layer.name)}")
        handles.append(executed.register_forward_pre_hook(run))
    call(compressor.model, inputs), call(small, inputs)
    for handle in handles:
        handle.remove()
    return {name: (simulated[name][0], codes) for name, codes in deployed.items() if len(simulated[name]) == 1}


def check_equal(compressor: bb.Compressor, small: bb.DeployedNetwork, inputs: Any) -> None:
    """Simulation and deployed network read the same codes, but for a few at rounding ties."""
    for name, (simulated, deployed) in input_codes(compressor, small, inputs).items():
        assert simulated.shape == deployed.shape, name
        assert (simulated != deployed).float().mean() < 1e-3, name
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert (actual - expected).norm() <= 1e-3 * expected.norm()
