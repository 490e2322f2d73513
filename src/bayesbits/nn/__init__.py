"""Modules that learn: the gated quantizer, the channel gate, and the bank that draws all gates at once."""

from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.gated_quantizer import GatedQuantizer
from bayesbits.nn.gates import GateBank, Gates

__all__ = ["ChannelFollower", "ChannelGate", "GateBank", "GatedQuantizer", "Gates"]
