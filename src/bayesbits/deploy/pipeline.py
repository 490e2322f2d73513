"""`deploy`: from a compressor to a network whose channels are removed and that computes with integers.

The passes run in the order of `PASSES`, each over the same `RewrittenProgram`. Loading a stored network with the float
network's code (`rebuild`) runs the same passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.export import Dim

from bayesbits.compression.compressor import Compressor, check_compressor
from bayesbits.deploy.decision import Decision, read_decision, stored_decision
from bayesbits.deploy.dynamic_shapes import ALL, AUTO, read_dynamic_shapes
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.rewrite.choose_arithmetic import choose_arithmetic
from bayesbits.deploy.rewrite.export_float_network import export_float_network
from bayesbits.deploy.rewrite.expose_products import expose_products
from bayesbits.deploy.rewrite.fold_batch_norm import fold_batch_norm
from bayesbits.deploy.rewrite.fuse_quantizers import fuse_quantizers
from bayesbits.deploy.rewrite.insert_quantizers import insert_quantizers
from bayesbits.deploy.rewrite.keep_codes import keep_codes
from bayesbits.deploy.rewrite.program import RewrittenProgram
from bayesbits.deploy.rewrite.remove_channels import DynamicChannelsError, remove_channels
from bayesbits.deploy.rewrite.remove_dead_branches import remove_dead_branches
from bayesbits.deploy.rewrite.replace_tables import replace_tables
from bayesbits.deploy.rewrite.write_record import write_record
from bayesbits.deploy.signature import read_arguments, sort_keyword_inputs
from bayesbits.records.integer_network import IntegerNetwork

PASSES: tuple[Callable[[RewrittenProgram], None], ...] = (
    replace_tables,  # a lookup of a quantized table becomes a module call
    fold_batch_norm,  # a layer and its batch norm become one module call
    remove_channels,  # removed channels leave every tensor between the layers
    remove_dead_branches,  # additions of zeros go, with the layers in front of them
    expose_products,  # products of two activations become module calls, and attention two of them
    choose_arithmetic,  # which layers compute in integers, and why the others do not
    insert_quantizers,  # where they were in training
    keep_codes,  # numbers that are only moved between quantizers of one grid stay codes
    fuse_quantizers,  # into the layers in front of them, which then emit codes
    write_record,  # the IntegerNetwork, which every runtime reads
)


def run_passes(decision: Decision) -> RewrittenProgram:
    """Export the float network of a decision, and run all passes."""
    program = export_float_network(decision)
    try:
        for run_pass in PASSES:
            run_pass(program)
    except DynamicChannelsError:
        return _run_with_fewer_sizes(decision, program)
    return program


def _run_with_fewer_sizes(decision: Decision, program: RewrittenProgram) -> RewrittenProgram:
    """Run all passes with the batch alone dynamic; where channels lie in that size, too, with fixed sizes."""
    places = [place for size in program.dynamic.sizes for place in size.places]
    kept = [place for place in places if place[1] == 0]
    marks = dict.fromkeys(kept if len(kept) < len(places) else (), Dim.AUTO)
    reason = "channels are removed from an operation's size that is computed from this one"
    reasons = {place: reason for place in places if place not in marks}
    return run_passes(replace(decision, marks=marks, fixed={**decision.fixed, **reasons}))


def deploy(compressor: Compressor, *, channel_multiple: int = 1, dynamic_shapes: Any = AUTO) -> DeployedNetwork:
    """Turns a fixed network into a smaller one that computes with integers.

    Its weights have no removed channels any more and are final integer codes. The deployed network is called as the
    network itself is and returns what it returned, output classes of ``transformers``, dataclasses and named tuples
    included; objects of other classes come as dicts of their attributes. It is on the CPU. The compressor and its
    network are not changed.

    Args:
        compressor: The handle that :func:`attach` returned, after ``calibrate`` and ``fix``.
        channel_multiple: Groups of channels keep some of their removed channels, as zeros, until their size is a
            multiple of this number (8 or 16 for most hardware).
        dynamic_shapes: The sizes of inputs that may change from call to call. ``"auto"``: batches and lengths, where
            the network's code lets them change, which is found by running it at other sizes. ``"all"``: image sizes
            too, with which files are slower. ``None``: no size. Otherwise as for ``torch.export.export``, such as
            ``{"x": {0: torch.export.Dim("batch")}}``.

    Returns:
        The deployed network. ``print`` shows its layers, the sizes that it takes, and why some layers compute in float
        and some sizes are fixed.

    Raises:
        TypeError: ``compressor`` is not a :class:`Compressor`.
        ValueError: Bits or channels are not final, ranges are not calibrated, the network is in half precision,
            ``torch.export`` cannot read it, or not with these dynamic shapes, or ``channel_multiple`` is not a
            positive integer.

    Example::

        >>> import torch, bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> compressor = bb.attach(model, torch.ones(1, 4), bb.Spec(bits=(4, 8)))
        >>> compressor.calibrate([torch.ones(2, 4)])
        >>> compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
        >>> small = bb.deploy(compressor)
        >>> small(torch.ones(3, 4)).shape
        torch.Size([3, 2])
        >>> [(layer.name, layer.bits, layer.arithmetic) for layer in small.integer.layers]
        [('0', 4, 'integer'), ('2', 4, 'integer')]
    """
    check_compressor(compressor, "deploy")
    if not isinstance(channel_multiple, int) or channel_multiple < 1:
        raise ValueError(f"channel_multiple is {channel_multiple!r}; it is an integer of at least 1")
    decision = read_decision(compressor, channel_multiple)
    kwargs = sort_keyword_inputs(decision.model, decision.args, decision.kwargs)
    arguments = read_arguments(decision.model, decision.args, kwargs)
    marks, images = read_dynamic_shapes(dynamic_shapes, arguments), dynamic_shapes == ALL
    program = run_passes(replace(decision, marks=marks, image_sizes=images))
    assert program.record is not None
    return DeployedNetwork(program.record, program.graph, program.floats)


def rebuild(model: nn.Module, network: IntegerNetwork) -> fx.Graph:
    """The graph of a stored network, made again from the code of its float network."""
    return run_passes(stored_decision(model, network)).graph
