"""The final weights of a table of embeddings, or of a matrix of a recurrent layer: its codes with their steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.functional.grid import CODE_BITS, INTEGER_BITS
from bayesbits.records.integer_network import IntegerNetwork, IntegerTable


@dataclass(frozen=True)
class TableWeights:
    """The weights of a table."""

    bits: int
    tensors: dict[str, Tensor]
    """"codes" (int8, or int16 above 8 bits) and "steps" (one, or one for each row), or "weight" above 16 bits."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return tuple(self.tensors["codes" if "codes" in self.tensors else "weight"].shape)


def read_tables(fixed: Compressor) -> dict[str, TableWeights]:
    """The tables of a network with its plan fixed, by name; those that stay in float are not there."""
    found = {}
    for parameter, table in fixed.topology.table_tensors.items():
        quantizer = fixed.attachment.quantizers.get(parameter)
        if quantizer is None or quantizer.mode == "off":
            continue
        bits, weight = quantizer.effective_bits(), fixed.model.get_parameter(parameter).detach()
        if bits > CODE_BITS:
            tensors = {"weight": quantizer(weight)}
        else:
            codes = quantizer.codes(weight).to(torch.int8 if bits <= INTEGER_BITS else torch.int16)
            tensors = {"codes": codes, "steps": quantizer.step().detach().reshape(-1)}
        found[table.name] = TableWeights(bits, tensors)
    return found


def stored_table(network: IntegerNetwork, table: IntegerTable) -> TableWeights:
    """The weights of a table of a stored network."""
    names = ("codes", "steps", "weight")
    tensors = {
        name: network.tensors[f"{table.name}.{name}"] for name in names if f"{table.name}.{name}" in network.tensors
    }
    return TableWeights(table.bits, tensors)
