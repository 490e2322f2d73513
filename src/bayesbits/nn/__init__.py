"""Modules: quantizers, gates and channel gates, and the live modules that they are attached to."""

from bayesbits.nn.channel_gate import ChannelFollower, ChannelGate
from bayesbits.nn.gated_quantizer import GatedQuantizer, KnownRangeQuantizer
from bayesbits.nn.gates import GateBank, Gates
from bayesbits.nn.quantizer import Quantizer

__all__ = [
    "ChannelFollower",
    "ChannelGate",
    "GateBank",
    "GatedQuantizer",
    "Gates",
    "KnownRangeQuantizer",
    "Quantizer",
]
