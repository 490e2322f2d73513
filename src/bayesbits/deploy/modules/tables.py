"""The modules of tables: of embeddings, whose rows are looked up, and of weights that recurrent layers read whole."""

import torch.nn.functional as F
from torch import Tensor, nn

from bayesbits.records.integer_network import IntegerNetwork, IntegerTable
from bayesbits.records.topology import RECURRENT


class Table(nn.Module):
    """The codes of a table and their steps, or its numbers."""

    codes: Tensor | None
    steps: Tensor | None
    weight: Tensor | None

    def __init__(self, network: IntegerNetwork, table: IntegerTable) -> None:
        super().__init__()
        self.table = table
        for name in ("codes", "steps", "weight"):  # codes and steps, or else numbers
            self.register_buffer(name, network.tensors.get(f"{table.name}.{name}"))

    def extra_repr(self) -> str:
        return f"{self.table.rows} x {self.table.columns}, {self.table.bits} bits"


class Lookup(Table):
    """A table of embeddings: rows of codes are looked up, and multiplied by the step of their row."""

    def forward(self, indices: Tensor) -> Tensor:
        if self.codes is None or self.steps is None:
            assert self.weight is not None
            return F.embedding(indices, self.weight)
        numbers = F.embedding(indices, self.codes).float()
        return numbers * (self.steps if self.steps.numel() == 1 else F.embedding(indices, self.steps.reshape(-1, 1)))


class Matrix(Table):
    """A weight of a recurrent layer: all codes, multiplied by the step of their row."""

    def forward(self) -> Tensor:
        if self.codes is None or self.steps is None:
            assert self.weight is not None
            return self.weight
        return self.codes.float() * self.steps.reshape(-1, 1)


def make_table(network: IntegerNetwork, table: IntegerTable) -> Table:
    """The module of a table."""
    return Matrix(network, table) if table.kind == RECURRENT else Lookup(network, table)
