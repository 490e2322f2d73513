"""Norms that belong to one layer: a batch norm, which is folded into it, or an instance norm, which has its gate."""

from collections.abc import Collection

from torch import fx, nn

from bayesbits.graph.exported_program import Program, arguments, operation, shape
from bayesbits.graph.weight_products import operands
from bayesbits.utils.torch_private import BatchNorm

BATCH_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm")
INSTANCE_NORM = "instance_norm"
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def own_batch_norm(program: Program, kind: str, calls: list[fx.Node]) -> str | None:
    """The batch norm that is the only reader of a layer's output, over its channels, with statistics to fold."""
    reader = _only_reader(program, calls, BATCH_NORMS)
    if reader is None:
        return None
    module = program.module(reader)
    if not isinstance(module, BatchNorm) or module.running_var is None:
        return None
    groups = arguments(calls[0])["groups"] if kind == "conv_transpose" else 1
    if groups > 1 and shape(operands(calls[0])[1])[:2] != (groups, 1):  # the outputs are on no axis of the weight
        return None
    features_first = kind == "linear" and len(shape(calls[0])) != 2  # batch norm would read positions as channels
    return None if features_first or program.calls_of[program.path(reader)] != 1 else program.path(reader)


def own_instance_norm(program: Program, kind: str, calls: list[fx.Node]) -> str | None:
    """The instance norm that is the only reader of a layer's output, over its channels, with tensors of its own."""
    reader = _only_reader(program, calls, (INSTANCE_NORM,))
    if reader is None or type(program.module(reader)) not in INSTANCE_NORMS:
        return None
    # It normalizes along the dimensions behind dimension 1: those are not a linear layer's features, nor its channels
    # where an image has no batch.
    if kind == "linear" or len(shape(calls[0])) != len(shape(operands(calls[0])[1])):
        return None
    shared = any(len(used.users) > 1 for used in reader.all_input_nodes if used is not calls[0])
    return None if shared or program.calls_of[program.path(reader)] != 1 else program.path(reader)


def _only_reader(program: Program, calls: list[fx.Node], names: Collection[str]) -> fx.Node | None:
    """The one reader of the output of a layer that runs once, if it is one of these operations; otherwise None."""
    readers = [user for user in calls[0].users if user.users or user in program.outputs]
    if len(calls) != 1 or len(readers) != 1 or calls[0] in program.outputs:
        return None
    return readers[0] if operation(readers[0]) in names and readers[0].args[0] is calls[0] else None
