"""A query from which a mask hides everything gets zeros from the ONNX file, as from torch's attention."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import quiet_exporter, translate
from bayesbits.deploy.onnx.runtime import Session

MASK = torch.tensor([[1, 1, 0], [0, 0, 0]])


class Attention(nn.Module):
    """Attention of one head, as one function or by hand, whose mask hides positions by this number."""

    def __init__(self, hidden: float | None = None) -> None:
        super().__init__()
        self.qkv, self.out, self.hidden = nn.Linear(8, 24), nn.Linear(8, 8), hidden

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.qkv(x)[:, None].chunk(3, -1)
        seen = mask[:, None, None].bool()
        if self.hidden is None:
            return self.out(F.scaled_dot_product_attention(query, key, value, attn_mask=seen)[:, 0])
        scores = (query @ key.transpose(-1, -2)).masked_fill(~seen, self.hidden)
        return self.out((scores.softmax(-1) @ value)[:, 0])


def verified(model: nn.Module, path: Path, bits: int = 8, form: str = "fast") -> tuple[Tensor, np.ndarray]:
    """The outputs of the deployed network and of its file, once they are proven equal."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    compressor = bb.attach(model, (x, MASK), bb.Spec(bits=(2, 8)))
    compressor.calibrate([(x[:1], MASK[:1])])
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, 8))
    small = bb.deploy(compressor)
    bb.export_onnx(small, (x, MASK), path, form=form)
    bb.verify(compressor, small, path, (x, MASK))
    return small(x, MASK), Session(path).run({"x": x.numpy(), "mask": MASK.numpy()})["output"]


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
@pytest.mark.parametrize(("bits", "form"), [(8, "fast"), (2, "compact")])
def test_a_row_without_anything_to_see_is_zero(tmp_path: Path, bits: int, form: str) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    deployed, found = verified(model, tmp_path / "small.onnx", bits, form)
    np.testing.assert_allclose(found, deployed.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(found[1], model.out.bias.detach().expand(3, 8).numpy(), atol=1e-2)
    assert float(np.abs(found[0] - found[1]).max()) > 0.1


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
def test_rows_that_are_nan_by_hand_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(bb.VerificationError, match=r"out.input: 24 of 48 .* are NaN .* mask by a finite number"):
        verified(Attention(-torch.inf).eval(), tmp_path / "small.onnx")
    verified(Attention(torch.finfo(torch.float32).min).eval(), tmp_path / "small.onnx")


def test_a_mask_of_the_networks_own_keeps_its_number() -> None:
    lowest = torch.finfo(torch.float32).min
    with quiet_exporter():
        model = translate(torch.export.export(Attention(lowest).eval(), (torch.randn(2, 3, 8), MASK)), 20)
    values = [numpy_helper.to_array(entry).ravel().tolist() for entry in model.graph.initializer]
    assert [lowest] in values
    assert [-np.inf] not in values
