"""The modules of products of two activations, such as those of attention: with float arithmetic, and with codes."""

import torch
from torch import Tensor, nn

from bayesbits.records.integer_network import IntegerNetwork, IntegerProduct


class FloatProduct(nn.Module):
    """A product of two activations whose arithmetic is float."""

    def __init__(self, network: IntegerNetwork, product: IntegerProduct) -> None:
        super().__init__()
        self.product = product

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.matmul(left.float(), right.float())

    def extra_repr(self) -> str:
        return f"float: {self.product.reason}"


class ExactProduct(nn.Module):
    """A product of the codes of two activations: it accumulates exactly, and emits codes or numbers."""

    scale: Tensor

    def __init__(self, network: IntegerNetwork, product: IntegerProduct) -> None:
        super().__init__()
        self.product = product
        assert product.left is not None
        assert product.right is not None
        scale = torch.tensor(network.grid(product.left).step) * torch.tensor(network.grid(product.right).step)
        if product.output is not None:
            scale = scale / torch.tensor(network.grid(product.output).step)
        self.register_buffer("scale", scale)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        # The number of terms is known only here; sums of products of 16 bits are exact in float64 up to 2^37 terms.
        scaled = torch.matmul(left.double(), right.double()).float() * self.scale
        if self.product.output is None:
            return scaled
        return torch.clamp(torch.round(scaled), self.product.output_low, self.product.output_high)

    def extra_repr(self) -> str:
        product = self.product
        emits = "numbers" if product.output is None else f"codes {product.output_low}..{product.output_high}"
        return f"{product.left} x {product.right}, emits {emits}"


def make_product(network: IntegerNetwork, product: IntegerProduct) -> nn.Module:
    """The module that computes a product of two activations."""
    return (ExactProduct if product.arithmetic == "integer" else FloatProduct)(network, product)
