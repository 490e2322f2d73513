"""The graph of a network from its input to its output, as the report draws it: nodes in running order, and their ways.

A `Topology` says which layers make the channels that a layer reads, what a product of two activations is computed from,
and what a residual addition adds. That determines the ways of tensors in convolutional networks and in attention; where
channels end without that, a layer is joined to what runs before it. Every way that does not lead to the next node has a
lane beside the main one.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayesbits.records.topology import Addition, Layer, Topology

INPUT, TABLE, LAYER, PRODUCT, ADDITION, OUTPUT = "input", "table", "layer", "product", "addition", "output"
MOST_LANES = 6
"""Beside the main lane; more ways at once share the last one."""


@dataclass(frozen=True)
class Node:
    """A row of the picture."""

    kind: str
    """"input", "table", "layer", "product", "addition" or "output"."""
    name: str
    """The name of the table, layer, product or addition; empty for input and output."""
    operands: tuple[str, ...] = ()
    """For an addition, the names of its operands' tensors that may have a width."""


@dataclass(frozen=True)
class Row:
    """A node, and the lanes beside it. Lane 0 is the main one, in which all nodes lie."""

    node: Node
    from_above: bool
    """Whether the way from the node above leads to this one in the main lane."""
    to_below: bool
    """Whether a way leads to the node below in the main lane."""
    passing: tuple[int, ...]
    """The lanes that pass this node."""
    begins: tuple[int, ...]
    """The lanes that begin at this node."""
    joins: tuple[int, ...]
    """The lanes that lead to this node."""
    below: tuple[int, ...]
    """The lanes that go on below this node."""


def network_rows(topology: Topology) -> list[Row]:
    """The rows of the picture, from the input to the output."""
    nodes, sources = _graph(topology)
    return _lanes(nodes, sources)


def running_numbers(topology: Topology) -> dict[str, int]:
    """The layers and products by name, numbered from 1 in the order of the picture."""
    names = [node.name for node in _steps(topology) if node.kind != TABLE]
    return {name: number for number, name in enumerate(names, start=1)}


def _graph(topology: Topology) -> tuple[list[Node], list[list[int]]]:
    """The nodes in running order, and for each the positions of the nodes that it reads."""
    nodes = _nodes(topology)
    place = {(node.kind, node.name): index for index, node in enumerate(nodes)}
    layers = {layer.name: layer for layer in topology.layers}
    additions = {addition.name: addition for addition in topology.additions}
    first_consumers = {one.name: one.consumers[0] for one in topology.activations}
    network_inputs = {one.name for one in topology.activations if one.network_input}
    products = {product.name: product.sources for product in topology.products}
    named = {node.name: index for index, node in enumerate(nodes) if node.kind in (TABLE, LAYER, PRODUCT)}
    sources: list[list[int]] = [[] for _ in nodes]
    unknown: set[int] = set()
    for index, node in enumerate(nodes):
        if node.kind == LAYER:
            layer = layers[node.name]
            first = place.get((LAYER, first_consumers.get(layer.activation, layer.name)), index)
            if layer.activation in network_inputs:
                sources[index] = [0]
            elif first < index:  # the tensor is read by an earlier layer, too
                sources[index] = sources[first]
            else:
                sources[index] = _makers(topology, layer, nodes, index)
        elif node.kind in (TABLE, PRODUCT):
            sources[index] = [named[name] for name in products.get(node.name, ()) if name in named] or [0]
        elif node.kind == ADDITION:
            sources[index] = _operands(topology, additions[node.name], nodes, index, sources)
        elif node.kind == OUTPUT:
            sources[index] = [place[LAYER, name] for name in topology.output_layers if (LAYER, name) in place]
            later = [place for place in range(index) if nodes[place].kind == ADDITION]
            if later and later[-1] == index - 1:  # the network ends with an addition
                sources[index] = [index - 1]
        if index and not sources[index]:
            sources[index] = [index - 1]
            unknown.add(index)
    _join_open_ends(nodes, sources, unknown)
    return nodes, [sorted(set(found)) for found in sources]


def _steps(topology: Topology) -> list[Node]:
    """Tables, layers in running order, and every product behind the last of what it is computed from."""
    steps = [Node(TABLE, table.name) for table in topology.tables]
    steps += [Node(LAYER, layer.name) for layer in topology.layers]
    for product in topology.products:
        read = [place for place, step in enumerate(steps) if step.name in product.sources]
        place = max(read, default=len(topology.tables) - 1) + 1
        while place < len(steps) and steps[place].kind == PRODUCT:
            place += 1
        steps.insert(place, Node(PRODUCT, product.name))
    return steps


def _nodes(topology: Topology) -> list[Node]:
    """Input, tables, layers and products with every addition behind the last layer that it reads, and output."""
    behind: dict[str, list[Node]] = {}
    for addition in topology.additions:
        if len(addition.operands) < 2:
            continue
        inside = [module for module in addition.operands if module is not None]
        path = addition.name.rpartition(".")[0]
        read = [layer.name for layer in topology.layers if any(_is_in(layer, module) for module in inside)]
        read = read or [layer.name for layer in topology.layers if path and _is_in(layer, path)]
        if read:
            operands = tuple(f"{module}.output" for module in inside)
            behind.setdefault(read[-1], []).append(Node(ADDITION, addition.name, operands))
    nodes = [Node(INPUT, "")]
    for step in _steps(topology):
        nodes += [step, *(behind.get(step.name, ()) if step.kind == LAYER else ())]
    return [*nodes, Node(OUTPUT, "")]


def _is_in(layer: Layer, module: str) -> bool:
    return module in (layer.name, layer.norm, "") or layer.name.startswith(f"{module}.")


def _makers(topology: Topology, layer: Layer, nodes: list[Node], index: int) -> list[int]:
    """For each group of channels that a layer reads, the latest node in front of it that makes them."""
    found = []
    operands = {addition.name: addition.operands for addition in topology.additions}
    by_name = {one.name: one for one in topology.layers}
    for group in {id(one): one for channel in layer.in_channels for one in [topology.group_of(channel)]}.values():
        producers = [by_name[name] for name in group.producers]
        for place in range(index - 1, 0, -1):
            node = nodes[place]
            if node.kind == LAYER and node.name in group.producers:
                found.append(place)
                break
            if node.kind == ADDITION and any(
                module is not None and _is_in(producer, module)
                for module in operands[node.name]
                for producer in producers
            ):
                found.append(place)
                break
    return found


def _operands(
    topology: Topology, addition: Addition, nodes: list[Node], index: int, sources: list[list[int]]
) -> list[int]:
    """For each operand, the latest node in its module; for one that is no module's output, what its block reads."""
    layers = {layer.name: layer for layer in topology.layers}
    found: list[int | None] = []
    for module in addition.operands:
        inside = None
        for place in range(index - 1, 0, -1) if module else ():
            node = nodes[place]
            path = node.name.rpartition(".")[0]
            if (node.kind == LAYER and _is_in(layers[node.name], module or "")) or (
                node.kind == ADDITION and (path == module or path.startswith(f"{module}."))
            ):
                inside = place
                break
        found.append(inside)
    known = [place for place in found if place is not None]
    if None in found:
        path = addition.name.rpartition(".")[0]
        # The other operand is a block of layers, or else the end of the module in which the addition is.
        blocks = [
            one for one in addition.operands if one and any(name.startswith(f"{one}.") for name in layers)
        ]  # fmt: skip
        block = [
            place
            for scope in [*blocks, path]
            for place in range(1, index)
            if nodes[place].kind == LAYER and scope and _is_in(layers[nodes[place].name], scope)
        ]
        if block:
            known += sources[block[0]]
    return known


def _join_open_ends(nodes: list[Node], sources: list[list[int]], unknown: set[int]) -> None:
    """A node that nothing reads leads to the next one whose sources are not known, such as the keys of attention."""
    read = {place for found in sources for place in found}
    for index in range(1, len(nodes) - 1):
        if index not in read:
            reader = next((place for place in sorted(unknown) if place > index), len(nodes) - 1)
            sources[reader].append(index)


def _lanes(nodes: list[Node], sources: list[list[int]]) -> list[Row]:
    """Lanes from a node to the last one that reads it and is not the next one; a lane is free again behind that."""
    last = [
        max((place for place, found in enumerate(sources) if index in found), default=index)
        for index in range(len(nodes))
    ]
    lane_of: dict[int, int] = {}
    taken: dict[int, int] = {}  # by lane, the node at which it ends
    for index, end in enumerate(last):
        if end > index + 1:
            free = [lane for lane in range(1, MOST_LANES + 1) if taken.get(lane, -1) <= index]
            lane_of[index] = free[0] if free else MOST_LANES
            taken[lane_of[index]] = max(end, taken.get(lane_of[index], -1))
    rows = []
    for index, node in enumerate(nodes):
        lanes = {origin: lane for origin, lane in lane_of.items() if origin <= index <= last[origin]}
        rows.append(
            Row(
                node=node,
                from_above=index - 1 in sources[index] if index else False,
                to_below=index + 1 < len(nodes) and index in sources[index + 1],
                passing=_sorted(lane for origin, lane in lanes.items() if origin < index < last[origin]),
                begins=_sorted(lane for origin, lane in lanes.items() if origin == index),
                joins=_sorted(
                    lane for origin, lane in lanes.items() if origin in sources[index] and origin < index - 1
                ),
                below=_sorted(lane for origin, lane in lanes.items() if index < last[origin]),
            )
        )
    return rows


def _sorted(lanes: object) -> tuple[int, ...]:
    return tuple(sorted(set(lanes)))  # type: ignore[call-overload]
