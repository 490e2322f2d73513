"""Exporting for many sizes: those that the code allows are dynamic, and others are fixed with a reason."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from bayesbits.graph.dynamic_shapes import DynamicExport, export_dynamic, export_marked
from bayesbits.graph.export import export_flat
from bayesbits.graph.flat_network import FlatNetwork


def export(network: nn.Module, *tensors: Tensor, marks=None) -> DynamicExport:
    flat = FlatNetwork(network.eval(), tensors, {})

    def by_torch(examples, shapes):
        return export_flat(flat, examples, shapes)[0]

    return export_dynamic(flat, by_torch) if marks is None else export_marked(flat, by_torch, marks)


class Chain(nn.Module):
    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.layer, self.size = nn.Linear(4, 6), size

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.size is None else x.reshape(self.size, 6)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_is_dynamic_where_the_code_allows_it(batch):
    for size, dynamic in ((None, ["batch"]), (batch, [])):
        found = export(Chain(size), torch.zeros(batch, 4))
        assert [size.name for size in found.sizes] == dynamic
        assert ((0, 0) in found.reasons) is not bool(dynamic)


class Positions(nn.Module):
    """Adds a row for every position, of which there are 12."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Parameter(torch.randn(12, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.rows[: x.shape[1]])


def test_a_length_is_limited_by_the_positions_that_there_are():
    found = export(Positions(), torch.zeros(2, 8, 4))
    assert [(size.name, size.low, size.high) for size in found.sizes] == [("batch", 1, None), ("length", 1, 12)]


class Pyramid(nn.Module):
    """Halves an image and doubles it again, so that its sides have to be even."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.layer(x), 2)
        return x + nn.functional.interpolate(y, scale_factor=2)


def test_the_multiple_of_an_image_size_is_found():
    found = export(Pyramid(), torch.randn(2, 3, 16, 16))
    sizes = {size.name: (size.places, size.multiple) for size in found.sizes}
    assert sizes == {"batch": (((0, 0),), 1), "height": (((0, 2),), 2), "width": (((0, 3),), 2)}


class Branching(nn.Module):
    """Computes something else for sequences of fewer than eight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        length = int(x.shape[1]) // 8 * 8
        return self.layer(x) * (2.0 if length == 8 else 1.0)


def test_a_size_that_decides_what_is_computed_is_fixed():
    found = export(Branching(), torch.randn(2, 8, 4))
    assert [size.name for size in found.sizes] == ["batch"]
    assert "test_dynamic_shapes.py" in found.reasons[0, 1]
    assert "(forward) computes with the number" in found.reasons[0, 1]


def test_sizes_that_are_asked_for_are_dynamic_and_have_their_names():
    found = export(Positions(), torch.zeros(2, 8, 4), marks={(0, 1): Dim("words", max=10)})
    assert [(size.name, size.places, size.high) for size in found.sizes] == [("words", ((0, 1),), 10)]
    assert export(Positions(), torch.zeros(2, 8, 4), marks={}).sizes == ()
    with pytest.raises(ValueError, match="cannot be exported with these dynamic shapes"):
        export(Chain(), torch.zeros(2, 4), marks={(0, 1): Dim("features")})


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_cannot_change_alone_are_one(batch):
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(self.layer(x), x, x, attn_mask=mask[:, None, None])

    found = export(Scored(), torch.randn(batch, 2, 8, 4), torch.zeros(batch, 8))
    places = {size.name: size.places for size in found.sizes}
    assert places["batch"] == ((0, 0), (1, 0))
    assert ((0, 2), (1, 1)) in places.values()


def test_an_export_that_fails_with_some_sizes_is_made_with_the_others():
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if isinstance(x.shape[1], torch.SymInt):
                raise RuntimeError("not with this length")
            return self.layer(x)

    found = export(Strange(), torch.randn(2, 8, 4))
    assert [size.name for size in found.sizes] == ["batch"]
    assert found.reasons[0, 1] == "torch.export finds that not with this length"


class Ignoring(nn.Module):
    """Reads its second input only where some of it is zero, as networks of transformers do with masks."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if torch.compiler.is_exporting() or not bool(mask.all()):
            x = x + mask.index_select(0, torch.arange(x.shape[0])) - 1
        return x.mean(1)


@pytest.mark.parametrize("batch", [1, 3])
def test_an_input_that_the_network_may_ignore_changes_with_the_others(batch):
    found = export(Ignoring(), torch.randn(batch, 4), torch.ones(batch, 4))
    assert [(size.name, size.places) for size in found.sizes if size.name == "batch"] == [("batch", ((0, 0), (1, 0)))]
