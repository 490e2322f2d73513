"""How a final network is tested."""

import pytest
import torch
from torch import nn

from bayesbits.recipes.accuracy import accuracy


def precisions() -> list[object]:
    """By torch's newer names and by its older ones, which it refuses to read where the two disagree."""
    backends = torch.backends
    newer = [setting.fp32_precision for setting in (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)]
    older = [backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()]
    return newer + older


class Recording(nn.Module):
    """Gives the images as logits, and looks at the precision that holds meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))
        self.seen: list[object] = []

    def forward(self, x):
        self.seen += precisions()
        return x


@pytest.fixture(params=["highest", "high"])
def chosen(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("chosen")
def test_a_network_is_tested_with_all_of_float32_and_settings_are_left_as_they_were():
    before = precisions()
    model = Recording()
    logits = torch.eye(4)
    assert accuracy(model, [(logits, torch.tensor([0, 1, 2, 0]))]) == 75
    assert model.seen == ["ieee", "ieee", "ieee", False, False, "highest"]
    assert precisions() == before
    with pytest.raises(ValueError, match="no pair"):
        accuracy(model, [logits])
    assert precisions() == before
