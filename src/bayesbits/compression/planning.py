"""Reading a `Plan` from the gates (`read_plan`), and fixing quantizers and gates to a `Plan` (`fix_plan`)."""

from bayesbits.compression.attachment import Attachment
from bayesbits.cost.bops import FLOAT_BITS
from bayesbits.records.plan import Plan


def read_plan(attachment: Attachment) -> Plan:
    """The present decision: gates thresholded, bits by tensor, channels by layer."""
    topology = attachment.topology
    bits = dict.fromkeys(topology.weight_tensors, FLOAT_BITS)
    bits |= {activation.name: FLOAT_BITS for activation in topology.activations}
    bits |= {name: q.effective_bits() for name, q in attachment.quantizers.items() if q.mode != "off"}
    kept = kept_channels(attachment)
    for parameter, layers in topology.weight_tensors.items():
        if all(kept.get(layer) == () for layer in layers):
            bits[parameter] = 0  # all channels of a branch beside a residual connection are removed
    return Plan(bits=bits, kept=kept)


def fix_plan(attachment: Attachment, plan: Plan) -> None:
    """Make a plan final; where it does not fit, or a range is not usable, raise and change nothing."""
    plan.check(attachment.topology)
    quantizers, gates = attachment.quantizers, attachment.channel_gates
    operands = attachment.topology.operand_tensors  # where the spec gave them no quantizer, they stay in float
    for name, bits in plan.bits.items():
        if name not in quantizers and name not in operands and bits != FLOAT_BITS:
            raise ValueError(f"the plan gives {name} {bits} bits, but it was left in float when attaching")
    for name in plan.kept:
        if name not in gates:
            raise ValueError(f"the plan removes channels of {name}, which was not to be pruned when attaching")
    for name in plan.bits:
        if name in quantizers:
            quantizers[name].check_range(name)
    for name, quantizer in quantizers.items():
        if name in plan.bits:
            quantizer.fix(plan.bits[name])
        else:  # the operand of a residual addition that the plan leaves in float
            quantizer.turn_off()
    for name, gate in gates.items():
        every = range(gate.gates.logits.numel())
        kept = set(plan.kept.get(name, every))
        gate.fix([channel in kept for channel in every])


def kept_channels(attachment: Attachment) -> dict[str, tuple[int, ...]]:
    """The output channels that stay, of every layer that loses some.

    Of every group at least one channel stays, and at least the next multiple that the spec asks for: the channels with
    the largest logits are taken back. Channels that are fixed are final; their number is not rounded up.
    """
    topology, multiple = attachment.topology, attachment.spec.channel_multiple
    gates = attachment.channel_gates
    kept = {name: gate.kept().tolist() for name, gate in gates.items()}
    logits = {name: gate.gates.logits.detach().tolist() for name, gate in gates.items()}
    for group in topology.removable_groups:
        makers: dict[int, list[tuple[str, int]]] = {channel: [] for channel in group.channels}
        full = [topology.layer(name) for name in group.producers if not topology.layer(name).depthwise]
        if not full or any(layer.name not in gates or gates[layer.name].fixed for layer in full):
            continue
        for layer in full:
            for index, channel in enumerate(layer.out_channels):
                if channel in makers:
                    makers[channel].append((layer.name, index))
        present = {channel: any(kept[name][index] for name, index in makers[channel]) for channel in group.channels}
        wanted = min(group.size, max(1, -(-sum(present.values()) // multiple)) * multiple)
        strongest = {channel: max(makers[channel], key=lambda at: logits[at[0]][at[1]]) for channel in group.channels}
        absent = [channel for channel in group.channels if not present[channel]]
        absent.sort(key=lambda channel: -logits[strongest[channel][0]][strongest[channel][1]])
        for channel in absent[: wanted - sum(present.values())]:
            name, index = strongest[channel]
            kept[name][index] = True
    return {
        name: tuple(index for index, stays in enumerate(mask) if stays) for name, mask in kept.items() if not all(mask)
    }
