"""The cost of a network: multiply-accumulates, bit operations and size."""

from bayesbits.cost.bops import CostModel
from bayesbits.cost.cost import Cost, LayerCost

__all__ = ["Cost", "CostModel", "LayerCost"]
