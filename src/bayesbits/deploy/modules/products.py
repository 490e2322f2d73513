"""The modules of products of two activations, such as those of attention: with float arithmetic, and with codes."""

import torch
from torch import Tensor, nn

from bayesbits.deploy.modules.quantizers import describe_output, emit, output_scale
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
        step = torch.tensor(network.grid(product.left).step) * torch.tensor(network.grid(product.right).step)
        self.register_buffer("scale", output_scale(network, product, step))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        # The number of terms is known only here; sums of products of 16 bits are exact in float64 up to 2^37 terms.
        return emit(self.product, torch.matmul(left.double(), right.double()).float() * self.scale)

    def extra_repr(self) -> str:
        return f"{self.product.left} x {self.product.right}, {describe_output(self.product)}"


def make_product(network: IntegerNetwork, product: IntegerProduct) -> nn.Module:
    """The module that computes a product of two activations."""
    return (ExactProduct if product.arithmetic == "integer" else FloatProduct)(network, product)
