"""A small network with quantizers, and what calibration makes of it."""

import torch
from hypothesis import strategies as st
from torch import nn

from bayesbits.nn import GatedQuantizer


class Net(nn.Module):
    """Two quantizers in a row, the second behind a ReLU that writes in place, and one that is never called."""

    def __init__(self):
        super().__init__()
        self.first = GatedQuantizer(signed=False, beta=7.0)
        self.second = GatedQuantizer(signed=True, beta=7.0)
        self.unused = GatedQuantizer(signed=True, beta=7.0)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.norm.num_batches_tracked.fill_(1)  # its statistics count: it has run before

    def forward(self, x, scale=1.0):
        return self.norm(self.second(torch.relu_(self.first(x) * scale)))

    def quantizers(self):
        return {"first.input": self.first, "second.input": self.second}


values = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40)


def batch(*values: float) -> torch.Tensor:
    """Four columns of the same values."""
    return torch.tensor(values).reshape(-1, 1).expand(-1, 4).clone()


def betas(net: Net) -> list[float]:
    return [quantizer.beta.item() for quantizer in net.quantizers().values()]
