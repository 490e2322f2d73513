"""What a spec attaches to a network, as a table: the kinds of tensors that are quantized, and their widths."""

from collections.abc import Sequence

from rich.table import Table

from bayesbits.compression.search_space import SearchSpace, find_search_space
from bayesbits.compression.spec import Spec
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import RECURRENT, Topology


def attached_table(topology: Topology, spec: Spec) -> Table:
    """For each kind of tensor how many there are, the widths that they may take, and the first of them."""
    table = Table("tensors", title="What the spec attaches", title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("bits")
    table.add_column("the first of them", overflow="fold")
    for row in attached_rows(topology, spec):
        table.add_row(*row)
    return table


def attached_rows(topology: Topology, spec: Spec) -> list[tuple[str, str, str, str]]:
    """The rows of the table; tensors of one kind with the same widths are one row."""
    space = find_search_space(spec, topology)
    groups: dict[tuple[str, str], list[str]] = {}
    for tensor, widths in space.widths.items():
        groups.setdefault((_kind(topology, tensor), _words(space, tensor, widths)), []).append(tensor)
    rows = [(kind, f"{len(tensors):,}", bits, tensors[0]) for (kind, bits), tensors in groups.items()]
    removable = [group for group in topology.removable_groups if space.prunable.intersection(group.producers)]
    if removable:
        number = sum(group.size for group in removable)
        rows.append(("channels, by gates of their own", f"{number:,}", "kept or removed", removable[0].name))
    return rows


def _kind(topology: Topology, tensor: str) -> str:
    """What a tensor is to the network."""
    if tensor in topology.weight_tensors:
        return "weights"
    if tensor in topology.table_tensors:
        recurrent = topology.table_tensors[tensor].kind == RECURRENT
        return "weights of recurrent layers" if recurrent else "tables of embeddings"
    if tensor in topology.product_tensors:
        return "operands of products"
    if tensor in topology.sigmoids:
        return "sigmoids for channels"
    if tensor in topology.operand_tensors:
        return "outputs of convolutions" if tensor in topology.emitted_tensors else "operands of additions"
    return "inputs of the network" if topology.activation(tensor).network_input else "inputs of layers"


def _words(space: SearchSpace, tensor: str, widths: Sequence[int]) -> str:
    """The widths that a tensor may take."""
    if len(widths) > 1:
        return f"{', '.join(map(str, widths[:-1]))} or {widths[-1]}, learned"
    if widths[0] == FLOAT_BITS:
        return "float"
    return f"{widths[0]}, by the range at run time" if tensor in space.dynamic else f"{widths[0]}, fixed"
