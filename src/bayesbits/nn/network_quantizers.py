"""All quantizers and gates of a network: one module, which is stored at the network's root under the name `bayesbits`.

It owns everything that learns, by the names of tensors and layers, and says what runs before and after each forward
pass. `nn.network` puts it into the network; `compression.attachment` decides which quantizers and gates there are.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.gates import GateBank
from bayesbits.nn.quantizer import Quantizer
from bayesbits.nn.steady_channels import SteadyChannels
from bayesbits.utils.naming import key_of, name_of


class NetworkQuantizers(nn.Module):
    """The quantizers by tensor, gates and followers by layer, steady channels by norm, and the bank of all gates."""

    def __init__(
        self,
        quantizers: Mapping[str, Quantizer],
        channel_gates: Mapping[str, ChannelGate],
        followers: Mapping[str, ChannelFollower],
        steady: Mapping[str, SteadyChannels] | None = None,
    ) -> None:
        super().__init__()
        self.calibration = CalibrationState()
        self.tensors = nn.ModuleDict({key_of(name): quantizer for name, quantizer in quantizers.items()})
        self.channels = nn.ModuleDict({key_of(name): gate for name, gate in channel_gates.items()})
        self.followers = nn.ModuleDict({key_of(name): gate for name, gate in followers.items()})
        self.norms = nn.ModuleDict({key_of(name): channels for name, channels in (steady or {}).items()})
        learning = [q.gates for q in self.quantizers.values() if q.mode == "learning" and q.gates.logits.numel()]
        # Channels first: a compiler reads their values with large tensors, several at once where they are aligned.
        self.bank = GateBank([*(gate.gates for gate in self.channel_gates.values()), *learning])

    @property
    def calibrated(self) -> bool:
        """Whether the ranges of the activations are known."""
        return self.calibration.known

    @calibrated.setter
    def calibrated(self, known: bool) -> None:
        self.calibration.known = known

    @property
    def quantizers(self) -> Mapping[str, Quantizer]:
        """Tensor name -> quantizer; tensors that stay in float are not there."""
        return {name_of(key): module for key, module in self.tensors.items()}  # type: ignore[misc]

    @property
    def channel_gates(self) -> Mapping[str, ChannelGate]:
        """Layer name -> gate of its output channels."""
        return {name_of(key): module for key, module in self.channels.items()}  # type: ignore[misc]

    @property
    def steady_channels(self) -> Mapping[str, SteadyChannels]:
        """Name of a batch norm that is folded into no layer -> the channels that it reads."""
        return {name_of(key): module for key, module in self.norms.items()}  # type: ignore[misc]

    def gate_of(self, layer: str) -> ChannelGate | ChannelFollower | None:
        """The gate of a layer's output channels: its own gate, or one that follows those of other layers."""
        if layer in self.channel_gates:
            return self.channel_gates[layer]
        followers = {name_of(key): module for key, module in self.followers.items()}
        return followers.get(layer)  # type: ignore[return-value]

    def learnable(self) -> dict[str, dict[str, nn.Parameter]]:
        """The groups "gates" and "ranges": the parameters that learn in the present modes, by name, frozen or not."""
        learning = {name: q for name, q in self.quantizers.items() if q.mode == "learning"}
        channels = {name: gate.gates.logits for name, gate in self.channel_gates.items() if not gate.fixed}
        ranged = {name: q for name, q in self.quantizers.items() if q.mode != "off" and q.learn_range}
        return {
            "gates": _named({name: q.width_parameters() for name, q in learning.items()}, "another width of")
            | {f"the channels of {name}": logits for name, logits in channels.items()},
            "ranges": _named({name: q.learned_range_parameters() for name, q in ranged.items()}, "the lower end of"),
        }

    def learning_ranges(self) -> list[nn.Parameter]:
        """The ends of ranges that learn, and lower ends that learn if a calibration makes a range asymmetric.

        An optimizer may be made before the calibration and its state loaded after one, so that neither the number of
        parameters nor their order depends on it.
        """
        ranged = [q for q in self.quantizers.values() if q.mode != "off" and q.learn_range]
        parameters = [q.possible_range_parameters() for q in ranged]
        return [end for ends in parameters for end in ends[:1]] + [end for ends in parameters for end in ends[1:]]

    @property
    def in_pass(self) -> bool:
        """Whether the network is in a forward pass."""
        return self.bank.present_pass.running

    def before_forward(self) -> None:
        """What the network does before each forward pass: draw all of its gates."""
        self.calibration.check()
        self.bank.draw()

    def after_forward(self) -> None:
        """What the network does after each forward pass."""
        self.bank.end_pass()

    def _apply(self, function: Any, recurse: bool = True) -> "NetworkQuantizers":
        """Move with the network, but stay in single precision: gates, ranges and costs are too fine for half."""

        def move(tensor: Tensor) -> Tensor:
            moved: Tensor = function(tensor)
            return tensor.to(moved.device) if tensor.is_floating_point() else moved

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def get_extra_state(self) -> Tensor:
        """Whether ranges are known: a tensor, so that any checkpoint format can hold it."""
        return torch.tensor(int(self.calibrated))

    def set_extra_state(self, state: Tensor) -> None:
        self.calibrated = bool(state.item())


def _named(parameters: Mapping[str, list[nn.Parameter]], second: str) -> dict[str, nn.Parameter]:
    """The first parameter of each tensor by the tensor's name, and then the second ones, by that and a word."""
    first = {name: own[0] for name, own in parameters.items() if own}
    return first | {f"{second} {name}": one for name, own in parameters.items() for one in own[1:]}
