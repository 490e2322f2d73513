"""The module of a table of embeddings."""

import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.records.integer_network import IntegerNetwork, IntegerTable


class Lookup(nn.Module):
    """A table of embeddings: rows of codes are looked up, and multiplied by the step of their row."""

    codes: Tensor | None
    steps: Tensor | None
    weight: Tensor | None

    def __init__(self, network: IntegerNetwork, table: IntegerTable) -> None:
        super().__init__()
        self.table = table
        for name in ("codes", "steps", "weight"):  # codes and steps, or else numbers
            self.register_buffer(name, network.tensors.get(f"{table.name}.{name}"))

    def forward(self, indices: Tensor) -> Tensor:
        if self.codes is None or self.steps is None:
            assert self.weight is not None
            return F.embedding(indices, self.weight)
        numbers = F.embedding(indices, self.codes).float()
        return numbers * (self.steps if self.steps.numel() == 1 else F.embedding(indices, self.steps.reshape(-1, 1)))

    def extra_repr(self) -> str:
        return f"{self.table.rows} x {self.table.columns}, {self.table.bits} bits"
