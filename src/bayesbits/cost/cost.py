"""The cost of a network under a plan: its MACs, bit operations, bytes and parameters, per layer and in total."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesbits.utils.tables import text_table


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer."""

    name: str
    """The layer's name."""
    macs: int
    """The multiply-accumulates that are left."""
    weight_bits: int
    """The width of its weight; 0 where the layer is gone."""
    activation_bits: int
    """The width of the activation that it reads."""
    kept_in: int
    """Its input channels that are left."""
    kept_out: int
    """Its output channels that are left."""
    bops: int
    """Its bit operations: MACs x weight bits x activation bits."""
    share: float
    """Its share of the network's bit operations, in percent."""
    weight_bytes: int
    """Its packed weight and its bias; a tied weight counts at the first of its layers."""
    parameters: int
    """The elements of its weight and bias; a tied weight counts at the first of its layers."""
    latency_ms: float | None = None
    """Its predicted milliseconds, where a latency table is given."""


@dataclass(frozen=True)
class TableCost:
    """The cost of one table of embeddings, which has no multiply-accumulates, or of a weight of a recurrent layer."""

    name: str
    """The table's name."""
    bits: int
    """Its width."""
    weight_bytes: int
    """Its packed codes."""
    parameters: int
    """Its elements."""
    macs: int = 0
    """The multiply-accumulates of a weight of a recurrent layer."""
    bops: int = 0
    """Its bit operations: MACs x bits x 32, as its activations are float."""
    share: float = 0.0
    """Its share of the network's bit operations, in percent."""


@dataclass(frozen=True)
class ProductCost:
    """The cost of one product of two activations, which has no weights."""

    name: str
    """The product's name."""
    macs: int
    """Its multiply-accumulates."""
    left_bits: int
    """The width of its first operand."""
    right_bits: int
    """The width of its second operand."""
    bops: int
    """Its bit operations: MACs x the widths of both operands."""
    share: float
    """Its share of the network's bit operations, in percent."""
    weight_bytes: ClassVar[int] = 0
    parameters: ClassVar[int] = 0


@dataclass(frozen=True)
class Cost:
    """The cost of a network under a plan; `print` shows it as a table.

    `Compressor.cost` returns it for the present decision, and `CostModel.count` for any plan.

    Args:
        macs: The multiply-accumulates that are left, those of unsupported parts included.
        bops: The bit operations: MACs x weight bits x activation bits, unsupported parts at 32 x 32 bits.
        relative_bops: The bit operations in percent of those of the whole network at 32 x 32 bits.
        paper_relative_bops: The same in the paper's convention, which counts removed input channels of a layer only
            where no residual addition joins them.
        weight_bytes: The bytes of the packed weights, and four for every other number: biases and parameters that
            stay in float.
        parameters: The number of weights and biases that are left, batch norm folded, and of parameters that stay in
            float.
        layers: The cost of every layer, in running order.
        latency_ms: The milliseconds of one call that a latency table predicts; None without a table.
        tables: The cost of every table of embeddings, and of every weight of a recurrent layer.
        products: The cost of every product of two activations that can be quantized, in running order.

    Example::

        >>> import bayesbits as bb
        >>> import torch
        >>> compressor = bb.attach(torch.nn.Linear(4, 2), torch.zeros(1, 4))
        >>> compressor.fix(bb.Plan.uniform(compressor.topology, weights=4, activations=8))
        >>> cost = compressor.cost()
        >>> cost.macs, cost.bops, cost.relative_bops
        (8, 256, 3.125)
        >>> print(cost)
        layer  MACs  weight bits  activation bits  in  out  BOPs %  bytes  parameters
                  8            4                8   4    2  100.00     12          10
        total     8                                         100.00     12          10
        256 BOPs, 3.125% of 32 x 32 bits (3.125% in the paper's convention)
    """

    macs: int
    """The multiply-accumulates that are left, those of unsupported parts included."""
    bops: int
    """The bit operations, with unsupported parts at 32 x 32 bits."""
    relative_bops: float
    """The bit operations in percent of those of the whole network at 32 x 32 bits."""
    paper_relative_bops: float
    """The same in the paper's convention, which counts removed inputs only where no residual addition joins them."""
    weight_bytes: int
    """The bytes of the packed weights, and four for every element of a bias or of a parameter that stays in float."""
    parameters: int
    """The elements of weights and biases that are left, batch norm folded, and of parameters that stay in float."""
    layers: tuple[LayerCost, ...]
    """The cost of every layer, in running order."""
    latency_ms: float | None = None
    """The milliseconds of one call that a latency table predicts; None without a table."""
    tables: tuple[TableCost, ...] = ()
    """The cost of every table of embeddings, and of every weight of a recurrent layer."""
    products: tuple[ProductCost, ...] = ()
    """The cost of every product of two activations that can be quantized, in running order."""

    @property
    def parts(self) -> tuple[LayerCost | TableCost | ProductCost, ...]:
        """The layers, the tables and the products: all that can be quantized."""
        return (*self.layers, *self.tables, *self.products)

    @property
    def unsupported_macs(self) -> int:
        """The multiply-accumulates outside of layers, products and weights of recurrent layers, which stay in float."""
        return self.macs - sum(part.macs for part in self.parts)

    def __str__(self) -> str:
        head = ("layer", "MACs", "weight bits", "activation bits", "in", "out", "BOPs %", "bytes", "parameters")
        rows = [
            (layer.name, f"{layer.macs:,}", str(layer.weight_bits), str(layer.activation_bits), str(layer.kept_in))
            + (str(layer.kept_out), f"{layer.share:.2f}", f"{layer.weight_bytes:,}", f"{layer.parameters:,}")
            for layer in self.layers
        ]
        rows += [
            (table.name, f"{table.macs:,}", str(table.bits), "32" if table.macs else "", "", "", f"{table.share:.2f}")
            + (f"{table.weight_bytes:,}", f"{table.parameters:,}")
            for table in self.tables
        ]
        rows += [
            (one.name, f"{one.macs:,}", str(one.left_bits), str(one.right_bits), "", "", f"{one.share:.2f}", "", "")
            for one in self.products
        ]
        other_bytes = self.weight_bytes - sum(part.weight_bytes for part in self.parts)
        if self.unsupported_macs or other_bytes:
            share = 100 - sum(part.share for part in self.parts)
            rows.append(
                ("(float)", f"{self.unsupported_macs:,}", "32", "32", "", "", f"{abs(share):.2f}", f"{other_bytes:,}")
                + (f"{self.parameters - sum(part.parameters for part in self.parts):,}",)
            )
        total = ("total", f"{self.macs:,}", "", "", "", "", "100.00", f"{self.weight_bytes:,}", f"{self.parameters:,}")
        summary = (
            f"{self.bops:,} BOPs, {self.relative_bops:.4g}% of 32 x 32 bits "
            f"({self.paper_relative_bops:.4g}% in the paper's convention)"
        )
        if self.latency_ms is not None:
            summary += f", {self.latency_ms:.4g} ms predicted"
        return f"{text_table(head, [*rows, total])}\n{summary}"
