"""What `attach` says about parts that stay in float: recurrent cells, attention and custom operations."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from tests.graph.test_layers import halve


def messages(model: nn.Module, x: Tensor, spec: bb.Spec | None = None) -> list[str]:
    """The warnings of attaching; each names the line here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bb.attach(model, x, spec)
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


class Cells(nn.Module):
    """A cell that runs three times, in front of a linear layer."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = module, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(3):
            state = self.recurrent(x[:, step], state)
        return self.head(state if isinstance(state, Tensor) else state[0])


@pytest.mark.parametrize(
    ("model", "what", "gates"),
    [
        (Cells(nn.LSTMCell(6, 8)), "LSTM", 4),
        (Cells(nn.GRUCell(6, 8)), "GRU", 3),
    ],
)
def test_recurrent_cells_are_named_once_with_all_of_their_macs(model, what, gates):
    (message,) = messages(model, torch.randn(2, 3, 6))
    macs = 2 * 3 * gates * 8 * (6 + 8)
    share = f"{macs / (macs + 2 * 8 * 4):.1%}"
    assert message.startswith(f"{share} of the MACs stay in float and count at 32 bits: recurrent ({what}, {share}); ")
    assert "activation_products" not in message


@pytest.mark.parametrize("products", [True, False])
def test_layers_of_a_transformer_encoder_are_attached_and_attention_is_named(products):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 4, 8)
    found = messages(model, x, bb.Spec(activation_products=products))
    rows, attention = 2 * 4, 2 * 2 * 4 * 4 * (4 + 4)
    share = attention / (rows * (4 * 8 * 8 + 2 * 8 * 16) + attention)
    assert len(found) == (not products)
    for message in found:
        assert f"layers.0.self_attn (attention product, {share / 2:.1%}), layers.1.self_attn" in message
        assert message.endswith("Spec(activation_products=True) quantizes products of attention too")


class Halved(nn.Module):
    """Calls an operation that torch does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return halve(x)


def test_custom_operations_are_named_before_work_is_lost():
    model = nn.Sequential(nn.Linear(4, 4), Halved(), Halved(), nn.Linear(4, 2))
    (message,) = messages(model, torch.ones(2, 4))
    assert message.startswith("1, 2: its MACs are not known and not counted, as bayesbits_tests::halve is none of")
