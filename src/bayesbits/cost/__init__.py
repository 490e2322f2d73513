"""What a network costs: MACs, bit operations, size."""

from bayesbits.cost.bops import CostModel
from bayesbits.cost.cost import Cost, LayerCost

__all__ = ["Cost", "CostModel", "LayerCost"]
