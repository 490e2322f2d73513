"""Reading a `Plan` from the gates (`read_plan`), and fixing quantizers and gates to a `Plan` (`fix_plan`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm

from bayesbits.compression.attachment import Attachment
from bayesbits.records.plan import FLOAT_BITS, Plan
from bayesbits.records.topology import ChannelGroup


def read_plan(attachment: Attachment) -> Plan:
    """The present decision: gates thresholded, bits by tensor, channels by layer."""
    return make_plan(attachment, _present_bits(attachment), kept_channels(attachment))


def read_widths(attachment: Attachment) -> dict[str, int]:
    """The present widths of all tensors, for methods that remove no channel."""
    return dict(make_plan(attachment, _present_bits(attachment), {}).bits)


def _present_bits(attachment: Attachment) -> dict[str, int]:
    return {name: q.effective_bits() for name, q in attachment.quantizers.items() if q.mode != "off"}


def make_plan(attachment: Attachment, bits: Mapping[str, int], kept: Mapping[str, tuple[int, ...]]) -> Plan:
    """The plan with these widths of quantizers and these channels; a weight all of whose channels are gone is gone."""
    topology = attachment.topology
    plan_bits = dict.fromkeys(topology.weight_tensors, FLOAT_BITS)
    # A table whose quantizer is off has no width, as it would be clipped at 32 bits.
    plan_bits |= {name: FLOAT_BITS for name in topology.table_tensors if name not in attachment.quantizers}
    plan_bits |= {activation.name: FLOAT_BITS for activation in topology.activations}
    plan_bits |= bits
    for parameter, layers in topology.weight_tensors.items():
        if all(kept.get(layer) == () for layer in layers):
            plan_bits[parameter] = 0  # all channels of a branch beside a residual connection are removed
    return Plan(bits=plan_bits, kept=kept)


def fix_plan(attachment: Attachment, plan: Plan) -> None:
    """Make a plan final; where it does not fit, or a range is not usable, raise and change nothing."""
    plan.check(attachment.topology)
    quantizers, gates = attachment.quantizers, attachment.channel_gates
    operands = attachment.topology.operand_tensors  # where the spec gave them no quantizer, they stay in float
    for name, bits in plan.bits.items():
        if name not in quantizers and name not in operands and bits != FLOAT_BITS:
            uniform = ", or take bb.baselines.uniform(compressor, batches), which leaves such tensors in float"
            raise ValueError(
                f"the plan gives {name} {bits} bits, but it was left in float when attaching: give it {FLOAT_BITS}"
                + uniform * attachment.method.gated
            )
    for name in plan.kept:
        if name not in gates:
            raise ValueError(f"the plan removes channels of {name}, which was not to be pruned when attaching")
    for name in plan.bits:
        if name in quantizers:
            quantizers[name].check_range(name)
            quantizers[name].check_width(plan.bits[name], name)
    for name, quantizer in quantizers.items():
        if name in plan.bits:
            quantizer.fix(plan.bits[name])
        else:  # the operand of a residual addition that the plan leaves in float
            quantizer.turn_off()
    for name, gate in gates.items():
        every = range(gate.channels)
        kept = set(plan.kept.get(name, every))
        gate.fix([channel in kept for channel in every])


@dataclass(frozen=True)
class DecidedGroup:
    """A group of channels of which gates decide how many stay."""

    group: ChannelGroup
    makers: Mapping[int, list[tuple[str, int]]]
    """For every channel class the layers that make it, each with the index of the gate that decides about it."""
    strongest: Mapping[int, tuple[str, int]]
    """For every channel class the one of its makers with the largest logit."""
    least: int = 1
    """The number of channels that stay at least."""

    def allowed(self, count: int, multiple: int) -> int:
        """The number of classes that stay where `count` of them were to stay: the least, rounded to a multiple.

        The least and the multiple are numbers of channels; a head has several.
        """
        least = -(-self.least // self.group.block)
        multiple = lcm(multiple, self.group.block) // self.group.block
        return min(self.group.size, -(-max(count, least) // multiple) * multiple)


def decided_groups(attachment: Attachment, logits: Mapping[str, list[float]]) -> list[DecidedGroup]:
    """The removable groups all of whose producers have gates that still learn; `logits` are those of each layer."""
    topology, gates = attachment.topology, attachment.channel_gates
    groups = []
    for group in topology.removable_groups:
        makers: dict[int, list[tuple[str, int]]] = {channel: [] for channel in group.channels}
        full = [topology.layer(name) for name in group.producers if topology.layer(name).deciding]
        if not full or any(layer.name not in gates or gates[layer.name].fixed for layer in full):
            continue
        for layer in full:
            numbers = gates[layer.name].gate_numbers
            places = dict.fromkeys((layer.out_channels[index], numbers[index]) for index in layer.deciding)
            for channel, gate in places:
                if channel in makers:
                    makers[channel].append((layer.name, gate))
        strongest = {channel: max(makers[channel], key=lambda at: logits[at[0]][at[1]]) for channel in group.channels}
        least = max(attachment.search_space.min_channels.get(name, 1) for name in group.producers)
        groups.append(DecidedGroup(group, makers, strongest, least))
    return groups


def channel_logits(attachment: Attachment) -> dict[str, list[float]]:
    """The logits of the channel gates, by the layer's name."""
    return {name: gate.gates.logits.detach().tolist() for name, gate in attachment.channel_gates.items()}


def kept_channels(attachment: Attachment) -> dict[str, tuple[int, ...]]:
    """The output channels that stay, of every layer that loses some, by the gates' decision."""
    kept = {name: gate.by_gate(gate.kept()).tolist() for name, gate in attachment.channel_gates.items()}
    logits = channel_logits(attachment)
    groups = decided_groups(attachment, logits)
    return channels_of(attachment, complete_groups(kept, logits, groups, attachment.spec.channel_multiple))


def channels_of(attachment: Attachment, kept: Mapping[str, list[bool]]) -> dict[str, tuple[int, ...]]:
    """The output channels that stay, of every layer that loses some, from what each of its gates keeps."""
    found = {}
    for name, mask in kept.items():
        numbers = attachment.channel_gates[name].gate_numbers
        found[name] = tuple(index for index, gate in enumerate(numbers) if mask[gate])
    return {name: indices for name, indices in found.items() if not all(kept[name])}


def complete_groups(
    kept: Mapping[str, list[bool]],
    logits: Mapping[str, list[float]],
    groups: Iterable[DecidedGroup],
    multiple: int,
) -> dict[str, list[bool]]:
    """Which gates of each layer keep their channels, if `kept` says what they decide by themselves.

    Of every group at least one channel stays, or as many as a rule says, and at least the next multiple that the spec
    asks for: the channels with the largest logits are taken back. Channels that are fixed are final; their number is
    not rounded up.
    """
    masks = {name: list(mask) for name, mask in kept.items()}
    for entry in groups:
        absent = [c for c in entry.group.channels if not any(masks[name][index] for name, index in entry.makers[c])]
        present = entry.group.size - len(absent)
        absent.sort(key=lambda channel: -logits[entry.strongest[channel][0]][entry.strongest[channel][1]])
        for channel in absent[: entry.allowed(present, multiple) - present]:
            name, index = entry.strongest[channel]
            masks[name][index] = True
    return masks
