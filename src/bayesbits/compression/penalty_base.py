"""What all penalties share: the table of a network's gates, and the sum over tensors and widths.

A tensor k has a gate z_jk for each of its widths b_1 < b_2 < ..., and q_jk = P(z_jk > 0) is the probability that it is
on. A width is in use where its gate and all narrower ones are on. A penalty charges each gate that is in use:

    sum_k sum_j charge_jk prod_(i<j) q_ik

MACs_k are those of the layers that use a weight, or of all layers that read an activation. An operand of a residual
addition that learns is charged with the MACs of the layer whose output it is (after its batch norm, if it has one), or
with the layers' mean MACs where no layer is known. A table of embeddings has none: only bytes are charged for it.
A weight of a recurrent layer has its own.

The first gate. For the weight of a layer with a `ChannelGate` it is the gate of each channel: q_1k is the mean over
the channels, and so is the charge. Tied layers are averaged by their MACs. Otherwise it is the quantizer's own; where
that does not learn, q_1k = 1 and the term is a constant, which is kept so that numbers compare.

What is decided. A tensor whose quantizer is fixed, off or missing is not charged, unless its channels still learn:
then its gates count as open up to its width (32 if off or missing), so that the channels pay for it. With all widths
decided, that is the expected L0 norm of the paper's appendix. The channels of a fixed `ChannelGate` count as 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bayesbits.cost import CostModel
from bayesbits.functional.gates import decide, probability_on
from bayesbits.nn import ChannelGate, Quantizer
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import FLOAT_BITS
from bayesbits.records.topology import Layer, Topology

_WIDTHS = (2, 4, 8, 16, 32)  # what the channels of a weight without a quantizer pay for
_DECIDED_LOGIT = 100.0  # P(z > 0) is 1 here, and 0 at its negative, in single and in double precision


class _Gate(NamedTuple):
    tensor: int  # which tensor it belongs to
    level: int  # which width it opens; 0 is the first
    price: float  # by the penalty's `prices`
    part: float = 0.0  # which part of its tensor's first gate it is


class Penalty(nn.Module):
    """The penalty of a network's gates. It has no parameters and nothing in a state_dict.

    A subclass says what each width of a tensor costs (`prices`), what a gate in use is charged (`charge`), and how the
    charges of all tensors become one number (`total`); see `compression.penalties`.

    `quantizers` are named by tensor, `channel_gates` by layer. They keep their owners; their modes are read in every
    call. The constants are made on the gates' device: where the network moves later, move this too.
    """

    channels_are_first_gates: ClassVar[bool] = True
    """Whether the channel gates of a weight take the place of its first gate."""

    price: Tensor
    tensor: Tensor
    part: Tensor
    """[gates]: the fields of `_Gate`. Behind the gates of quantizers and channels stands, for each
    tensor, one that is always on, the part of its first gate that does not learn; the last gate costs nothing."""
    higher: Tensor
    """[widths but the first, tensors]: where the gates stand; the last one where a tensor has fewer widths."""
    integers: Tensor
    """0 to 32."""
    decided: Tensor
    """The logits of a gate that is decided: off, on."""

    def __init__(
        self,
        topology: Topology,
        quantizers: Mapping[str, Quantizer],
        channel_gates: Mapping[str, ChannelGate],
        *,
        num_examples: int | None = None,
        cost_model: CostModel | None = None,
        table: LatencyTable | None = None,
    ) -> None:
        """`num_examples`, `cost_model` and `table` are for the penalties that need them."""
        super().__init__()
        # Plain containers: quantizers and channel gates are owned by the network's own modules.
        self._quantizers, self._channel_gates = dict(quantizers), dict(channel_gates)
        pruned: dict[str, list[ChannelGate]] = {}
        for layer, channels in channel_gates.items():
            pruned.setdefault(topology.layer(layer).parameter, []).append(channels)
        self._tensors = {name: (quantizers.get(name), pruned.get(name, [])) for name in {**quantizers, **pruned}}
        for name, values in self._constants(topology).items():
            self.register_buffer(name, values, persistent=False)
        self.use_dtype_of_gates()

    def use_dtype_of_gates(self) -> None:
        """Move all constants to the device of the gates, in their precision or in single precision."""
        owners = [entry.gates for group in (self._quantizers, self._channel_gates) for entry in group.values()]
        like = owners[0].logits if owners else torch.empty(0)
        self.to(like.device, torch.promote_types(like.dtype, torch.float32))

    @staticmethod
    def prices(widths: tuple[int, ...], mac_share: float) -> list[float]:
        """The price of each width of a tensor; `mac_share` is MACs_k / max MACs."""
        return [width * mac_share for width in widths]

    def charge(self, logits: Tensor, on: Tensor) -> Tensor:
        """What each gate is charged where all narrower ones are on; `on` is q, `self.price` its price."""
        return self.price * on

    def total(self, charges: Tensor, on: Tensor) -> Tensor:
        """The penalty, from the charges of all tensors: their sum over the tensors that are not decided yet."""
        zero, one = self.integers[:1], self.integers[1:2]
        learns = [one if _learns(quantizer, channels) else zero for quantizer, channels in self._tensors.values()]
        return (charges * torch.cat([zero[:0], *learns])).sum()

    def forward(self, decided: bool = False) -> Tensor:
        """The penalty, a number that is differentiable in the gates' logits.

        `decided`: that of the gates' test-time decision, in which each is on or off, and which has no gradient.
        """
        logits, on = self.gates_on(decided)
        return self.total(self.tensor_charges(self.charge(logits, on), on), on)

    def gates_on(self, decided: bool) -> tuple[Tensor, Tensor]:
        """The logits of all gates, and the probability q of each; with `decided` 0 or 1."""
        logits = torch.cat([*self._logits(), self.decided[1:].expand(len(self._tensors) + 1)]).to(self.price.dtype)
        return logits, decide(logits).to(logits.dtype) if decided else probability_on(logits)

    def tensor_charges(self, charge: Tensor, on: Tensor) -> Tensor:
        """The charge of every tensor: the sum over its gates in use, from the charges of all gates."""
        charges, in_use = self._first(charge), self._first(on)
        for row_charge, row_on in zip(self._higher(charge), self._higher(on), strict=True):
            charges, in_use = charges + row_charge * in_use, in_use * row_on
        return charges

    def _logits(self) -> Iterator[Tensor]:
        """The logits of all gates, 100 or -100 for those that are decided."""
        off, on = self.decided[:1], self.decided[1:]
        for quantizer in self._quantizers.values():
            bits = decided_bits(quantizer)
            if bits is None:
                yield quantizer.gates.logits
            else:
                yield from (on if width <= bits else off for width in quantizer.bits[quantizer.gates.open_first :])
        for channels in self._channel_gates.values():
            logits = torch.where(channels.kept(), on, off) if channels.fixed else channels.spread(channels.gates.logits)
            yield logits if channels.all_may_close else torch.where(channels.may_close, logits, on)

    def _first(self, values: Tensor) -> Tensor:
        """For every tensor the mean of the values over its first gate."""
        return values.new_zeros(len(self._tensors) + 1).index_add(0, self.tensor, values * self.part)[:-1]

    def _higher(self, values: Tensor) -> tuple[Tensor, ...]:
        """For every width but the first the values of all tensors' gates."""
        return values.index_select(0, self.higher.flatten()).reshape(self.higher.shape).unbind()

    def _constants(self, topology: Topology) -> dict[str, Tensor]:
        """The buffers by name; errors where quantizers or gates do not fit the network."""
        shares, names = _mac_shares(topology), list(self._tensors)
        if unknown := [name for name in names if name not in shares]:
            raise ValueError(f"no tensor of the network is called {unknown[0]!r}; there are: {', '.join(shares)}")
        prices: list[list[float]] = []
        for name, (quantizer, _) in self._tensors.items():
            widths = quantizer.bits if quantizer is not None else (sum(_WIDTHS),)
            prices.append(self.prices(widths, shares[name]))
        always_on, gates = [1.0] * len(names), []
        for index, quantizer in enumerate(self._quantizers.values()):
            always_on[index] = float(quantizer.gates.open_first)
            for level in range(int(quantizer.gates.open_first), len(quantizer.bits)):
                gates.append(_Gate(index, level, prices[index][level], float(level == 0)))
        for name, channels in self._channel_gates.items():
            layer, count = topology.layer(name), channels.channels
            index, tied = names.index(layer.parameter), topology.weight_tensors[layer.parameter]
            _check_channels(layer, count)
            part = layer.macs / sum(topology.layer(other).macs for other in tied)
            if not self.channels_are_first_gates:
                part = 0.0
            elif always_on[index] == 0.0:
                raise ValueError(
                    f"the channel gates of {name!r} are the first gate of {layer.parameter!r}, whose quantizer has one "
                    "of its own: make it with zero=False"
                )
            always_on[index] -= part
            gates += [_Gate(index, 0, prices[index][0], part / count)] * count
        gates += [_Gate(index, 0, prices[index][0], part) for index, part in enumerate(always_on)] + [
            _Gate(len(names), 0, 0.0)
        ]
        higher = torch.full((max(map(len, prices), default=1) - 1, len(names)), len(gates) - 1)
        for position, gate in enumerate(gates):
            if gate.level > 0:
                higher[gate.level - 1, gate.tensor] = position
        return {
            "price": torch.tensor([gate.price for gate in gates], dtype=torch.float64),
            "tensor": torch.tensor([gate.tensor for gate in gates]),
            "part": torch.tensor([gate.part for gate in gates], dtype=torch.float64),
            "higher": higher,
            "integers": torch.arange(FLOAT_BITS + 1, dtype=torch.float64),
            "decided": torch.tensor([-_DECIDED_LOGIT, _DECIDED_LOGIT]),
        }


def _check_channels(layer: Layer, count: int) -> None:
    if layer.depthwise or count != len(layer.out_channels):
        raise ValueError(
            f"{layer.name!r} has a gate for {count} channels; a gate takes all {len(layer.out_channels)} output "
            "channels of a layer, and a depthwise layer has none, as it follows its producers"
        )


def decided_bits(quantizer: Quantizer | None) -> int | None:
    """The width of a tensor that is fixed or in float; None where its gates decide."""
    if quantizer is None or quantizer.mode == "off":
        return FLOAT_BITS
    return quantizer.fixed_bits if quantizer.mode == "fixed" else None


def _learns(quantizer: Quantizer | None, channels: list[ChannelGate]) -> bool:
    """Whether any gate of a tensor is still to be decided."""
    bits = decided_bits(quantizer)
    return bits is None or (bits > 0 and not all(gate.fixed for gate in channels))


def _mac_shares(topology: Topology) -> dict[str, float]:
    """For every tensor the MACs that it is charged with, over those of the largest layer or product."""
    macs = topology.macs_of
    made_by = {layer.norm: layer.macs for layer in topology.layers} | macs
    mean, largest = sum(macs.values()) / len(macs), max(macs.values())
    users = topology.weight_tensors | {activation.name: activation.consumers for activation in topology.activations}
    charged = {name: made_by.get(module, mean) for name, module in topology.operand_tensors.items()}
    charged |= {name: sum(macs[layer] for layer in layers) for name, layers in users.items()}
    charged |= {name: table.macs for name, table in topology.table_tensors.items()}
    return {name: value / largest for name, value in charged.items()}
