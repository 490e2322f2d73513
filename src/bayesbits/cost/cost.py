"""What a network costs, as numbers and as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs."""

    name: str
    """The layer's name."""
    macs: int
    """The multiply-accumulates that are left."""
    weight_bits: int
    """The width of its weight; 0 where it vanished."""
    activation_bits: int
    """The width of the activation that it reads."""
    kept_in: int
    """Its input channels that are left."""
    kept_out: int
    """Its output channels that are left."""
    bops: int
    """Its bit operations: MACs x weight bits x activation bits."""
    share: float
    """Its part of the network's bit operations, in percent."""
    weight_bytes: int
    """Its packed weight and its bias; a tied weight counts at the first of its layers."""
    parameters: int
    """The elements of its weight and bias; a tied weight counts at the first of its layers."""


@dataclass(frozen=True)
class Cost:
    """What a network costs; `print` shows it as a table."""

    macs: int
    """The multiply-accumulates that are left, those of unsupported parts included."""
    bops: int
    """The bit operations, with unsupported parts at 32 x 32 bits."""
    relative_bops: float
    """The bit operations in percent of those of the whole network at 32 x 32 bits."""
    paper_relative_bops: float
    """The same in the paper's convention, which counts pruned inputs only where no residual addition joins."""
    weight_bytes: int
    """The packed weights, and four bytes for every element of a bias and of whatever else stays in float."""
    parameters: int
    """The elements of weights and biases that are left, batch norm folded, and of whatever else stays in float."""
    layers: tuple[LayerCost, ...]
    """Every layer, in the order in which they run."""

    @property
    def unsupported_macs(self) -> int:
        """The multiply-accumulates outside of the layers, which are left in float."""
        return self.macs - sum(layer.macs for layer in self.layers)

    def __str__(self) -> str:
        head = ("layer", "MACs", "weight bits", "activation bits", "in", "out", "BOPs %", "bytes", "parameters")
        rows = [
            (layer.name, f"{layer.macs:,}", str(layer.weight_bits), str(layer.activation_bits), str(layer.kept_in))
            + (str(layer.kept_out), f"{layer.share:.2f}", f"{layer.weight_bytes:,}", f"{layer.parameters:,}")
            for layer in self.layers
        ]
        other_bytes = self.weight_bytes - sum(layer.weight_bytes for layer in self.layers)
        if self.unsupported_macs or other_bytes:
            share = 100 - sum(layer.share for layer in self.layers)
            rows.append(
                ("(float)", f"{self.unsupported_macs:,}", "32", "32", "", "", f"{abs(share):.2f}", f"{other_bytes:,}")
                + (f"{self.parameters - sum(layer.parameters for layer in self.layers):,}",)
            )
        total = ("total", f"{self.macs:,}", "", "", "", "", "100.00", f"{self.weight_bytes:,}", f"{self.parameters:,}")
        columns = [max(map(len, column)) for column in zip(head, *rows, total, strict=True)]
        lines = [
            "  ".join(cell.rjust(size) if index else cell.ljust(size) for index, (cell, size) in enumerate(paired))
            for paired in (list(zip(row, columns, strict=True)) for row in (head, *rows, total))
        ]
        lines.append(
            f"{self.bops:,} BOPs, {self.relative_bops:.4g}% of 32 x 32 bits "
            f"({self.paper_relative_bops:.4g}% in the paper's convention)"
        )
        return "\n".join(line.rstrip() for line in lines)
