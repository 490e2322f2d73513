"""Finding the residual additions, and the modules at whose outputs their operands can be quantized.

The input of a max-pool whose indices are used (mostly for unpooling) is such an operand, too: sums that are equal as
integers may differ in the last bit as floats, which would change the index of the largest value.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from torch import fx

from bayesbits.graph.channel_rules import MOVES, SAME
from bayesbits.graph.exported_program import Program, is_float, operation, shape
from bayesbits.graph.layer_norms import BATCH_NORMS
from bayesbits.graph.operations import CLIPS
from bayesbits.graph.pointwise import is_pointwise
from bayesbits.records.topology import Addition, Unsupported
from bayesbits.utils.weight_products import CONVOLUTIONS

NORMALIZATIONS = frozenset(
    ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "group_norm", "native_group_norm", "rsqrt")
)
INDEXED = re.compile(r"max_pool\dd_with_indices|(adaptive|fractional)_max_pool\dd")


def find_additions(
    program: Program, weighted: Collection[fx.Node], lookups: Collection[fx.Node]
) -> tuple[tuple[Addition, ...], tuple[Unsupported, ...], dict[str, fx.Node]]:
    """The additions, an entry for each operand that is not a module's output, and the nodes of the other operands.

    An addition is residual if it adds two float tensors of equal shape that are computed from different sets of
    weighted operations (`weighted`), embeddings (`lookups`) and network inputs, at least one of them a weighted
    operation. A sum of functions of one tensor (a rotary embedding, a GELU written as a formula) is not residual, and
    neither is the addition of a bias, a position or a mask.
    """
    sources = _sources(program, weighted, lookups)
    additions, missing = [], []
    nodes: dict[str, fx.Node] = {}
    names: dict[str, int] = {}
    residual = {node for node in program.nodes if _is_residual(node, sources, weighted)}
    for node in program.nodes:
        pools = _gives_indices(node, sources, weighted)
        if not pools and node not in residual:
            continue
        name = ".".join(part for part in (program.path(node), "max_pool" if pools else "add") if part)
        names[name] = names.get(name, 0) + 1
        name += f"#{names[name]}" if names[name] > 1 else ""
        sides = [
            module_output(program, used, through_functions=pools)
            for used in node.args[: 1 if pools else 2]
            if isinstance(used, fx.Node)
        ]
        operands = tuple(None if side is None else side[0] for side in sides)
        nodes.update({f"{side[0]}.output": side[1] for side in sides if side is not None})
        additions.append(Addition(name, operands, not pools and _is_normalized(node, residual, weighted)))
        for index, operand in enumerate(operands):
            if operand is None:
                what = "the input of the max-pool" if pools else f"operand {index + 1} of the addition"
                reason = (
                    f"{what} stays in float: it is not the output of a module that runs once "
                    "(a functional operation computes it, or a module that is used several times)"
                )
                reason += "; the indices of equal values may then differ when deployed" if pools else ""
                missing.append(Unsupported(name, "residual operand", 0, reason))
    return tuple(additions), tuple(missing), nodes


def _sources(
    program: Program, weighted: Collection[fx.Node], lookups: Collection[fx.Node]
) -> dict[fx.Node, frozenset[fx.Node]]:
    """For every node the nearest weighted operations, embeddings and float inputs that its value is computed from."""
    sources: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in program.nodes:
        if node in weighted or node in lookups or (node in program.inputs and is_float(node)):
            sources[node] = frozenset([node])
        else:
            sources[node] = frozenset().union(*(sources[used] for used in node.all_input_nodes))
    return sources


def _gives_indices(node: fx.Node, sources: dict[fx.Node, frozenset[fx.Node]], weighted: Collection[fx.Node]) -> bool:
    """Whether a node is a max-pool of computed numbers whose indices something reads."""
    if INDEXED.fullmatch(operation(node)) is None or not any(source in weighted for source in sources[node]):
        return False
    return any(operation(user) == "getitem" and user.args[1] == 1 and user.users for user in node.users)


def _is_residual(node: fx.Node, sources: dict[fx.Node, frozenset[fx.Node]], weighted: Collection[fx.Node]) -> bool:
    if operation(node) != "add" or len(node.all_input_nodes) != 2 or not all(map(is_float, node.all_input_nodes)):
        return False
    left, right = node.all_input_nodes
    if shape(left) != shape(right) or not sources[left] or not sources[right] or sources[left] == sources[right]:
        return False
    return any(source in weighted for source in sources[left] | sources[right])


def _is_normalized(addition: fx.Node, additions: Collection[fx.Node], weighted: Collection[fx.Node]) -> bool:
    """Whether a normalization over features reads a sum in front of the next layer, and no convolution makes it.

    RMSNorm may be written as a formula, in which the reciprocal root of a mean is taken.
    """
    if any(_is_convolution(operand) for operand in addition.all_input_nodes):
        return False
    reached, waiting = set[fx.Node](), list(addition.users)
    while waiting:
        node = waiting.pop()
        if operation(node) in NORMALIZATIONS:
            return True
        if node not in reached and node not in weighted and node not in additions:
            reached.add(node)
            waiting += node.users
    return False


def _is_convolution(node: fx.Node) -> bool:
    """Whether a tensor is the output of a convolution, behind its batch norm, clipped or moved."""
    while operation(node) in (*SAME, *MOVES, *CLIPS, *BATCH_NORMS, "getitem") and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return operation(node) in CONVOLUTIONS


def module_output(program: Program, node: fx.Node, *, through_functions: bool = False) -> tuple[str, fx.Node] | None:
    """The outermost module that runs once and whose only output is this tensor, and the tensor's node.

    With `through_functions`, the tensor may also be a pointwise function of the module's output.
    """
    for key, path in program.calls(node):
        if not path or program.calls_of[path] != 1 or program.tensor_outputs.get(path) != shape(node):
            continue
        leaving = [other for other in program.nodes_in[key] if _leaves(program, other, key)]
        if leaving == [node]:
            return path, node
    if len(node.all_input_nodes) != 1:
        return None
    (source,) = node.all_input_nodes
    # A copy (dropout in evaluation, a cast that changes nothing) has the value of what it copies.
    passes = operation(node) in SAME and node.meta["val"].dtype == source.meta["val"].dtype
    passes = passes or (through_functions and is_float(source) and is_pointwise(node))
    return module_output(program, source, through_functions=through_functions) if passes else None


def _lies_in(program: Program, node: fx.Node, key: str) -> bool:
    return any(call == key for call, _ in program.calls(node))


def _leaves(program: Program, node: fx.Node, key: str) -> bool:
    """Whether something outside of a module's call reads the node."""
    return node in program.outputs or any(
        not _lies_in(program, user, key) for user in node.users if user.op != "output"
    )
