"""Blocks are found from additions and classes, and quantizers inside of them with them."""

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.layerwise import float_copy
from bayesbits.baselines.reconstruction_blocks import block_unit, find_blocks
from bayesbits.zoo import models
from tests.networks import Inverted


class Block(nn.Module):
    def __init__(self, shortcut: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.shortcut = nn.Linear(4, 4), nn.Linear(4, 4), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(torch.relu(self.a(x)))
        return y + x if self.shortcut else y


class Pair(Block):
    """Returns two tensors, so that it is no block."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.plain, self.twice, self.pair = nn.Linear(4, 4), Block(), Block(False), Block(), Pair()
        self.group = nn.ModuleDict({"inner": Block(), "last": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain(self.one(self.stem(x)))
        x, y = self.pair(self.twice(self.twice(x)))
        return self.group["last"](self.group["inner"](x)) + y


def found(model: nn.Module, x: Tensor) -> dict[str, tuple[str, ...]]:
    compressor = bb.attach(model.eval(), x, bb.Spec(prune=False))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology))
    return find_blocks(compressor, float_copy(compressor), x)


def test_blocks_with_and_without_a_shortcut_but_not_those_that_run_twice_or_return_pairs():
    torch.manual_seed(0)
    assert found(Nested(), torch.randn(3, 4)) == {
        "one": ("one.a", "one.b"), "plain": ("plain.a", "plain.b"), "group.inner": ("group.inner.a", "group.inner.b"),
    }  # fmt: skip


def test_networks_of_the_zoo():
    blocks = found(models.create("resnet20"), torch.randn(2, 3, 16, 16))
    assert len(blocks) == 9
    assert all(len(layers) == 2 for layers in blocks.values())
    assert found(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)) == {}
    assert found(Inverted(), torch.randn(2, 3, 8, 8)) == {}  # its addition is the network's own


def test_a_block_has_the_quantizers_of_its_layers_and_of_its_operands():
    model, x = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 2)), torch.randn(3, 4)
    compressor = bb.attach(model.eval(), x, bb.Spec(prune=False, residual_bits=8))
    compressor.calibrate([x])
    unit = block_unit(compressor, "1", ["1.a"])
    names = {name for name, quantizer in compressor.attachment.quantizers.items() if quantizer in unit.quantizers}
    assert names == {"1.a.input", "1.b.input", "1.b.output"}
    assert [name for name, _ in unit.layers] == ["1.a"]
