"""How a final network is tested."""

import pytest
import torch
from torch import nn

from bayesbits.recipes.accuracy import accuracy

SETTINGS = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)


def precisions() -> list[str]:
    return [setting.fp32_precision for setting in SETTINGS]


class Recording(nn.Module):
    """Gives the images as logits, and looks at the precision that holds meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))
        self.seen: list[str] = []

    def forward(self, x):
        self.seen += precisions()
        return x


def test_a_network_is_tested_with_all_of_float32_and_settings_are_left_as_they_were():
    before = precisions()
    model = Recording()
    logits = torch.eye(4)
    assert accuracy(model, [(logits, torch.tensor([0, 1, 2, 0]))]) == 75
    assert model.seen == ["ieee", "ieee"]
    assert precisions() == before
    with pytest.raises(ValueError, match="no pair"):
        accuracy(model, [logits])
    assert precisions() == before
