"""Attaching fails where a product of two activations cannot be found again while the network runs."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.nn.class_exchange import AttachedModule
from tests.graph.attention import attention, examples


class UnreadProduct(nn.Module):
    """Code whose first product torch.export leaves out."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x = self.layer(x)
        _ = x.transpose(1, 2) @ x
        return x @ x.transpose(1, 2)


def test_a_product_that_is_not_in_the_graph_is_an_error_that_names_the_way_out():
    model = UnreadProduct().eval()
    with pytest.raises(ValueError, match=r"^matmul has 960 MACs .* and 600 in its graph: .*activation_products=False"):
        bb.attach(model, examples(), bb.Spec(activation_products=True))
    assert not any(isinstance(module, AttachedModule) for module in model.modules())
    bb.attach(model, examples())


def test_the_network_stays_as_it_is():
    model = attention().train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    compressor = bb.attach(model, examples(), bb.Spec(activation_products=True))
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not compressor.attachment.calibrated
    assert {quantizer.mode for quantizer in compressor.attachment.quantizers.values()} == {"learning", "fixed"}
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
