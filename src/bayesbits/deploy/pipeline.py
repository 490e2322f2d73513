"""`deploy`: from a compressor to a network that is really smaller and computes with integers.

read the decision -> export the float copy -> fold batch norm -> take channels out -> place quantizers -> fuse
"""

from __future__ import annotations

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.deploy.decision import read_decision
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.rewrite.fold_batch_norm import fold
from bayesbits.deploy.rewrite.fuse_quantizers import fuse
from bayesbits.deploy.rewrite.insert_quantizers import place
from bayesbits.deploy.rewrite.integer_layers import cut, obstacle, record
from bayesbits.deploy.rewrite.program import export_float
from bayesbits.deploy.rewrite.remove_channels import prune
from bayesbits.deploy.rewrite.remove_dead_branches import drop_silent


def deploy(compressor: Compressor, *, channel_multiple: int = 1) -> DeployedNetwork:
    """The network as it was fixed, with channels really gone and weights as final integers.

    It is called as the network itself is, and returns the same containers (objects of other classes as dicts of their
    attributes). Raises where bits or channels are still being learned, and for networks in half precision.

    With `channel_multiple` (8 or 16, say) groups of channels keep as many more, as zeros, as make their number a
    multiple. The compressor is not changed. The deployed network is on the CPU.
    """
    check_compressor(compressor, "deploy")
    if not isinstance(channel_multiple, int) or channel_multiple < 1:
        raise ValueError(f"channel_multiple is {channel_multiple!r}; it is an integer of at least 1")
    decision = read_decision(compressor, channel_multiple)
    program = export_float(decision.model, decision.args, decision.kwargs)
    if program.reading.topology.layers != decision.topology.layers:
        raise ValueError("the network is not the one that was attached to: detach, attach again, and go on from there")
    layers = fold(program)
    prune(program, layers, decision.removed)
    silent = {name for name, weights in decision.weights.items() if weights.bits == 0}
    layers = drop_silent(program, layers, silent)
    weights = {entry.layer.name: cut(entry.layer, decision) for entry in layers}
    obstacles = {name: obstacle(decision.topology.layer(name), weights[name], decision.grids) for name in weights}
    integer = [name for name, reason in obstacles.items() if reason is None]
    place(program, layers, decision.grids, integer)
    emissions = fuse(program.graph, layers, decision.grids, integer)
    integers = record(program, layers, decision, weights, obstacles, emissions)
    return DeployedNetwork(integers, program.graph, program.floats)
