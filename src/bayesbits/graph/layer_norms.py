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
    """The batch norm that is the only reader of a layer's outputs, over its channels, with statistics to fold."""
    readers = _only_readers(program, calls, BATCH_NORMS)
    if not readers:
        return None
    module = program.module(readers[0])
    if not isinstance(module, BatchNorm) or module.running_var is None:
        return None
    groups = arguments(calls[0])["groups"] if kind == "conv_transpose" else 1
    if groups > 1 and shape(operands(calls[0])[1])[:2] != (groups, 1):  # the outputs are on no axis of the weight
        return None
    # Of more dimensions than two, batch norm would read a linear layer's positions as channels.
    features_first = kind == "linear" and any(len(shape(call)) != 2 for call in calls)
    return None if features_first else program.path(readers[0])


def own_instance_norm(program: Program, kind: str, calls: list[fx.Node]) -> str | None:
    """The instance norm that is the only reader of a layer's outputs, over its channels, with tensors of its own."""
    readers = _only_readers(program, calls, (INSTANCE_NORM,))
    if not readers or type(program.module(readers[0])) not in INSTANCE_NORMS:
        return None
    # It normalizes along the dimensions behind dimension 1: those are not a linear layer's features, nor its channels
    # where an image has no batch.
    rank = len(shape(operands(calls[0])[1]))
    if kind == "linear" or any(len(shape(call)) != rank for call in calls):
        return None
    used = {node for reader in readers for node in reader.all_input_nodes if node not in calls}
    shared = any(user not in readers for node in used for user in node.users)
    return None if shared else program.path(readers[0])


def _only_readers(program: Program, calls: list[fx.Node], names: Collection[str]) -> list[fx.Node]:
    """The readers of a layer's outputs, one for each call, where all of them are the calls of one norm; otherwise none.

    A layer and its norm run several times in a shared encoder, for one.
    """
    found = []
    for call in calls:
        readers = [user for user in call.users if user.users or user in program.outputs]
        if len(readers) != 1 or call in program.outputs or operation(readers[0]) not in names:
            return []
        if readers[0].args[0] is not call:
            return []
        found += readers
    paths = {program.path(reader) for reader in found}
    return found if len(paths) == 1 and program.calls_of[paths.pop()] == len(calls) else []
