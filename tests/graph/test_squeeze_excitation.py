"""Squeeze and excitation: which images and sigmoids get a quantizer, and which stay as they are."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.graph.trace import trace
from bayesbits.nn import KnownRangeQuantizer
from bayesbits.nn.hard_swish_quantizer import HardSwishQuantizer
from tests.graph.networks import randomize

X = torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


class Formula(nn.Module):
    """A hard sigmoid as a formula."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x + 3.0) / 6.0


class Joined(nn.Module):
    """Two convolutions, concatenated; the second one reads the image, or the first one as in GhostNet."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.left, self.right, self.relu = nn.Conv2d(8, 4, 1), nn.Conv2d(inputs, 4, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        left = self.relu(self.left(x))
        return torch.cat([left, F.relu(self.right(x if self.right.in_channels == 8 else left))], 1)


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
    "norm": lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)),
    "hard-swish": lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.Hardswish()),
    "joined": lambda: Joined(8),
    "ghost": lambda: Joined(4),
    "silu": lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.SiLU()),
}
SIGMOIDS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid, "hard sigmoid": nn.Hardsigmoid, "formula": Formula, "clip": lambda: nn.Hardtanh(0.0, 1.0),
}  # fmt: skip


class Squeezed(nn.Module):
    """A network with one squeeze and excitation; `change` is called with the image behind it and the sigmoid."""

    def __init__(self, image: str, sigmoid: str, change: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), IMAGES[image]()
        self.squeeze, self.excite, self.sigmoid = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1), SIGMOIDS[sigmoid]()
        self.last, self.head, self.change = nn.Conv2d(8, 4, 1), nn.Linear(4, 3), change

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(F.relu(self.stem(x)))
        factors = self.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = x * factors if self.change is None else self.change(x, factors)
        return self.head(self.last(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("image", "sigmoid", "images", "sigmoids"),
    [
        ("relu", "sigmoid", {"body"}, ("sigmoid.output",)),
        ("norm", "formula", {"body"}, ("sigmoid.output",)),
        ("hard-swish", "hard sigmoid", {"body", "body.1"}, ("sigmoid.output",)),
        ("hard-swish", "formula", {"body", "body.1"}, ("sigmoid.output",)),
        ("hard-swish", "clip", {"body", "body.1"}, ()),
        ("joined", "clip", {"body"}, ()),
        ("ghost", "sigmoid", {"body", "body.relu", "body.right"}, ("sigmoid.output",)),
        ("silu", "sigmoid", {"body.0"}, ()),
    ],
)
def test_images_and_sigmoids_are_found(image: str, sigmoid: str, images: set[str], sigmoids: tuple[str, ...]) -> None:
    found = trace(Squeezed(image, sigmoid).eval(), X)
    excited = "sigmoid" if sigmoid == "clip" else "excite"
    gates = {name.removesuffix(".output") for name in sigmoids}
    assert set(found.emitted) == images | {excited, "last"} | gates
    assert found.sigmoids == sigmoids


def test_a_concatenation_has_one_range_with_its_parts() -> None:
    (family,) = trace(Squeezed("ghost", "clip").eval(), X).shared_ranges
    assert family == ("body.output", "body.relu.output", "body.right.input", "body.right.output")


@pytest.mark.parametrize(
    "change",
    [
        lambda x, s: torch.tanh(x * s),  # no quantizer rounds the product
        lambda x, s: x * s + x,  # others read image and product
        lambda x, s: x * (1 - s),
        lambda x, s: x * s.mean(1, keepdim=True),
        lambda x, s: x * (s * s),
    ],
)
def test_other_products_stay_as_they_are(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    found = trace(Squeezed("hard-swish", "sigmoid", change).eval(), X)
    assert found.sigmoids == ()
    assert "body" not in found.emitted or any("body" in addition.operands for addition in found.additions)


def test_a_sigmoid_that_is_no_module_stays_in_float() -> None:
    class Functional(Squeezed):
        def forward(self, x: Tensor) -> Tensor:
            x = self.body(F.relu(self.stem(x)))
            factors = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
            return self.head(self.last(x * factors).mean((2, 3)))

    assert trace(Functional("relu", "sigmoid").eval(), X).sigmoids == ()


@pytest.mark.parametrize("read", ["image", "sigmoid", None])
def test_what_another_function_reads_stays_in_float(read: str | None) -> None:
    class More(Squeezed):
        def forward(self, x: Tensor) -> Tensor:
            x = self.body(F.relu(self.stem(x)))
            factors = self.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
            more = {"image": x, "sigmoid": factors}.get(read or "", torch.ones(1, 1, 1, 1))
            return self.head(self.last(x * factors).mean((2, 3)) * more.exp().mean((2, 3))[:, :4])

    found = trace(More("hard-swish", "sigmoid").eval(), X)
    assert ("body" in found.emitted, found.sigmoids) == ((True, ("sigmoid.output",)) if read is None else (False, ()))


def test_the_quantizers_of_all_three_kinds() -> None:
    model = randomize(Squeezed("hard-swish", "sigmoid")).eval()
    compressor = bb.attach(model, X, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([X])
    quantizers = compressor.attachment.quantizers
    sigmoid = quantizers["sigmoid.output"]
    assert isinstance(quantizers["body.1.output"], HardSwishQuantizer)
    assert isinstance(sigmoid, KnownRangeQuantizer)
    assert (sigmoid.signed, sigmoid.beta.item(), sigmoid.possible_range_parameters()) == (False, 1.0, [])
    torch.testing.assert_close(sigmoid.step().item(), 1 / 255)
    assert quantizers["body.output"].asymmetric
    float_network = bb.attach(Squeezed("hard-swish", "sigmoid").eval(), X, bb.Spec.paper())
    assert not {"sigmoid.output", "body.output"}.intersection(float_network.attachment.quantizers)
