"""The search space of a network: the widths that every tensor may take, and the layers whose channels may be removed.

A `Spec` is applied to a network here. Every pattern of `Spec.rules` is compared with the names of layers first and,
where it matches none, with the names of tensors. Layers may share a tensor (an activation that both read, a tied
weight), and a tensor has one width: a demand of one of them holds for all, and two different demands are an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from bayesbits.compression.spec import Rule, Spec
from bayesbits.functional.dynamic import DYNAMIC_BITS
from bayesbits.functional.grid import INTEGER_BITS, MAX_BITS
from bayesbits.methods import METHODS
from bayesbits.records.topology import POOLED_BITS, Topology

RESIDUAL_BITS = 8
"""The width of operands of residual additions by default, where they have a quantizer."""


@dataclass(frozen=True)
class SearchSpace:
    """The decisions that are open for a network."""

    widths: Mapping[str, tuple[int, ...]]
    """For every weight and activation, and for the operands with a quantizer, the widths it may take, by its name.

    One width is a fixed one, and a weight or activation that is fixed at 32 is left in float.
    """
    prunable: frozenset[str]
    """The layers with channels that may be removed; layers that follow others are not named."""
    skipped: frozenset[str]
    """The layers that are left in float entirely."""
    min_channels: Mapping[str, int]
    """For layers with such a rule: how many channels of every group that they make stay at least."""
    dynamic: frozenset[str] = frozenset()
    """The activations that are quantized by their own range at run time."""

    def fixed(self, tensor: str) -> int | None:
        """The tensor's width where there is no choice, otherwise None."""
        widths = self.widths[tensor]
        return widths[0] if len(widths) == 1 else None


def find_search_space(spec: Spec, topology: Topology) -> SearchSpace:
    """Apply a spec to a network; a ValueError names a pattern that matches nothing, or rules that disagree."""
    owners: dict[str, tuple[str, ...]] = dict(topology.weight_tensors)
    owners.update({activation.name: activation.consumers for activation in topology.activations})
    owners.update({parameter: (table.name,) for parameter, table in topology.table_tensors.items()})
    owners.update(dict.fromkeys(topology.operand_tensors, ()))
    dynamic = _dynamic(spec, topology)
    stored = {*topology.weight_tensors, *topology.table_tensors}
    decided = dynamic if spec.activations != "float" else frozenset(owners) - stored
    layers, tensors = _collect(spec, topology, owners, decided)
    widths = {}
    for tensor, rules in tensors.items():
        given = _decided(spec, topology, tensor) if tensor in decided else _given(spec, topology, tensor)
        found = _widths(tensor, _agreed(tensor, rules), spec.bits, given)
        if tensor in decided and found not in (given, (MAX_BITS,)):
            raise ValueError(
                f"{tensor} has {given[0]} bits by Spec(activations={spec.activations!r}), and the rules give it "
                f"{found[0]}: leave that out, or give it {MAX_BITS} to leave it in float"
            )
        if found and not (tensor in topology.operand_tensors and found == (MAX_BITS,)):
            widths[tensor] = found
    skipped = frozenset(name for name, rule in layers.items() if rule.skip)
    rules = {layer.name: layers[layer.name] for layer in topology.layers}
    min_channels = {name: rule.min_channels for name, rule in rules.items() if rule.min_channels is not None}
    return SearchSpace(widths, _prunable(spec, topology, layers) - skipped, skipped, min_channels, dynamic)


def _dynamic(spec: Spec, topology: Topology) -> frozenset[str]:
    """The activations that are quantized at run time: those that only linear layers read."""
    if spec.activations != "dynamic":
        return frozenset()
    linear = {layer.name for layer in topology.layers if layer.kind == "linear"}
    return frozenset(activation.name for activation in topology.activations if linear.issuperset(activation.consumers))


def _decided(spec: Spec, topology: Topology, tensor: str) -> tuple[int, ...]:
    """The width of an activation that `Spec.activations` decides; at run time the network's input may stay in float."""
    if spec.activations == "float":
        return (MAX_BITS,)
    stays = topology.activation(tensor).network_input and spec.input_bits == MAX_BITS
    return (MAX_BITS,) if stays else (DYNAMIC_BITS,)


def _collect(
    spec: Spec, topology: Topology, owners: Mapping[str, tuple[str, ...]], decided: frozenset[str]
) -> tuple[dict[str, Rule], dict[str, dict[str, Rule]]]:
    """For every layer, product and table its rule, and for every tensor the rule of each one that has it ("" where none
    has it).

    Widths that a layer's rule gives do not concern its input where that is `decided` by the spec.
    """
    layers = {name: Rule() for name in (*topology.macs_of, *(table.name for table in topology.tables))}
    tensors = {tensor: {owner: Rule() for owner in names or ("",)} for tensor, names in owners.items()}
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    fixed_inputs = set() if spec.input_bits == "learned" else inputs
    for pattern, rule in spec.rules.items():
        matched = {name for name in layers if fnmatchcase(name, pattern)}
        named = [] if matched else [tensor for tensor in tensors if fnmatchcase(tensor, pattern)]
        if not matched and not named:
            close = get_close_matches(pattern, [*layers, *tensors], n=4, cutoff=0.0)
            raise ValueError(f"the rule for {pattern!r} matches no layer and no tensor; closest are {', '.join(close)}")
        if named and (rule.prune is not None or rule.min_channels is not None):
            raise ValueError(f"the rule for {pattern!r} speaks of channels, but matches only tensors; name the layer")
        for name in matched:
            layers[name] = _override(layers[name], rule)
        for tensor, rules in tensors.items():
            # Where the width of a network input is not learned, bounds on what is learned do not concern it.
            meant = replace(rule, min_bits=None, max_bits=None) if matched and tensor in fixed_inputs else rule
            if matched and tensor in decided:
                meant = replace(rule, bits=None, min_bits=None, max_bits=None)
            for owner, stated in rules.items():
                if owner in matched or tensor in named:
                    rules[owner] = _override(stated, meant)
    return layers, tensors


def _override(earlier: Rule, later: Rule) -> Rule:
    """Both rules, the later one first: a fixed width, bounds, and being skipped exclude each other."""
    prune = earlier.prune if later.prune is None else later.prune
    min_channels = earlier.min_channels if later.min_channels is None else later.min_channels
    if later.skip:
        return later
    if later.bits is not None:
        return replace(later, prune=prune, min_channels=min_channels)
    if later.min_bits is None and later.max_bits is None:
        return replace(earlier, skip=False, prune=prune, min_channels=min_channels)
    min_bits = earlier.min_bits if later.min_bits is None else later.min_bits
    max_bits = earlier.max_bits if later.max_bits is None else later.max_bits
    return Rule(min_bits=min_bits, max_bits=max_bits, prune=prune, min_channels=min_channels)


def _agreed(tensor: str, rules: Mapping[str, Rule]) -> Rule:
    """The one rule for a tensor, from those of the layers that share it; a layer without demands follows the others."""
    demands = {owner: replace(rule, prune=None, min_channels=None) for owner, rule in rules.items()}
    first, agreed = next(((owner, rule) for owner, rule in demands.items() if rule != Rule()), ("", Rule()))
    for owner, demand in demands.items():
        if demand != agreed and (demand != Rule() or agreed.skip):
            raise ValueError(
                f"{first} and {owner} share the tensor {tensor}, but their rules disagree on it ({_said(agreed)}; "
                f"{_said(demand)}); give them the same rule, or add one behind it for {tensor!r}"
            )
    return agreed


def _said(rule: Rule) -> str:
    said = {name: value for name, value in vars(rule).items() if value is not None and value is not False}
    return ", ".join(f"{name}={value}" for name, value in said.items()) or "nothing said"


def _given(spec: Spec, topology: Topology, tensor: str) -> tuple[int, ...]:
    """The widths of a tensor without a rule."""
    given: int | str | None = "learned"
    if tensor in topology.emitted_tensors:
        given = spec.output_bits
    elif tensor in topology.operand_tensors:
        given = spec.residual_bits
        if given == "auto":
            given = None if tensor in topology.normalized_tensors else RESIDUAL_BITS
        if given is None and tensor in topology.pooled_tensors:
            given = POOLED_BITS
    elif any(activation.name == tensor and activation.network_input for activation in topology.activations):
        given = MAX_BITS if spec.edge_bits == MAX_BITS else spec.input_bits
    elif spec.edge_bits is not None and tensor in _edges(topology):
        given = spec.edge_bits
    elif spec.fixed_widths is not None and tensor not in topology.table_tensors:
        given = spec.fixed_widths[tensor not in topology.weight_tensors]
    if given is None:
        return ()
    if given == "learned" and not METHODS[spec.method].gated and tensor not in _decided_by_method(topology):
        given = INTEGER_BITS
    return spec.bits if isinstance(given, str) else (given,)


def _decided_by_method(topology: Topology) -> set[str]:
    """The tensors that other methods than Bayesian Bits are about: weights, and activations but the network's input."""
    inner = {activation.name for activation in topology.activations if not activation.network_input}
    return set(topology.weight_tensors) | inner


def _edges(topology: Topology) -> set[str]:
    """The weights of the first and the last layers, and the inputs of the last ones."""
    inputs = {activation.name for activation in topology.activations if activation.network_input}
    first = {layer.parameter for layer in topology.layers if layer.activation in inputs}
    last = [topology.layer(name) for name in topology.output_layers]
    return first | {layer.parameter for layer in last} | {layer.activation for layer in last}


def _widths(tensor: str, rule: Rule, bits: tuple[int, ...], given: tuple[int, ...]) -> tuple[int, ...]:
    """The widths in `given` that a rule allows; bounds give a quantizer to an operand that has none by default."""
    if rule.skip or rule.bits is not None:
        return (rule.bits or MAX_BITS,)
    if rule.min_bits is None and rule.max_bits is None:
        return given
    low, high = rule.min_bits or 0, rule.max_bits or MAX_BITS
    widths = tuple(width for width in given or bits if low <= width <= high)
    if not widths:
        choice = f"fixed at {given[0]}: give it a rule with bits" if len(given) == 1 else f"to be chosen from {bits}"
        raise ValueError(f"the rules leave no width for {tensor} ({_said(rule)}), which is {choice}")
    return widths


def _prunable(spec: Spec, topology: Topology, layers: Mapping[str, Rule]) -> frozenset[str]:
    """The layers with removable channels that neither their rule nor that of a layer which follows them keeps."""
    if not METHODS[spec.method].gated:
        return frozenset()
    kept_by_follower = {
        producer
        for group in topology.groups
        if any(
            not topology.layer(name).deciding and (layers[name].prune is False or layers[name].skip)
            for name in group.producers
        )
        for producer in group.producers
    }
    return frozenset(
        layer.name
        for layer in topology.layers
        if layer.deciding
        and layer.name not in topology.output_layers
        and layer.name not in kept_by_follower
        and (spec.prune if layers[layer.name].prune is None else layers[layer.name].prune)
        and spec.group_size is None
        and any(topology.group_of(layer.out_channels[index]).removable for index in layer.deciding)
    )
