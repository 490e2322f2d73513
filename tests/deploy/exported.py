"""Networks with fixed plans, deployed and written to a file, for the tests of export and verification."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import bayesbits as bb
from tests.deploy.comparison import mixed_plan
from tests.graph.networks import randomize


@dataclass
class Exported:
    """A compressor, its deployed network, and inputs that exceed both ends of every range."""

    compressor: bb.Compressor
    small: bb.DeployedNetwork
    example: Any
    inputs: Any

    def write(self, path: Path, form: str = "fast") -> Path:
        """Export to a file."""
        bb.export_onnx(self.small, self.example, path, form)
        return path

    def verify(self, path: Path, runtime: str = "onnxruntime") -> bb.Verification:
        """Verify a file."""
        return bb.verify(self.compressor, self.small, path, self.inputs, runtime)


def exported(
    model: nn.Module,
    example: Any,
    *,
    spec: bb.Spec | None = None,
    bits: tuple[int, ...] = (2, 4, 8),
    drop: float = 0.3,
    seed: int = 0,
    count: int = 64,
) -> Exported:
    """A network with random weights and biases under a random plan, deployed."""
    compressor = bb.attach(randomize(model, seed).eval(), example, spec or bb.Spec(bits=(2, 4, 8)))
    generator = torch.Generator().manual_seed(seed)
    tensors = [x for x in _leaves(example) if x.is_floating_point()]
    batch = tensors[0].shape[0] if tensors else 2

    def examples(x: Tensor, scale: float) -> Tensor:
        shape = (count // batch * batch, *x.shape[1:])
        if not x.is_floating_point():
            return torch.randint(0, 20, shape, generator=generator)
        return scale * torch.randn(shape, generator=generator)

    inputs = tree_map_only(Tensor, lambda x: examples(x, 1.0), example)
    first = tree_map_only(Tensor, lambda x: x[:batch], inputs)
    compressor.calibrate([first])
    plan = mixed_plan(compressor.topology, bits=bits, drop=drop, seed=seed)
    compressor.fix(bb.Plan(_within_rules(compressor, plan), plan.kept))
    wide = tree_map_only(Tensor, lambda x: examples(x, 2.0), example)
    return Exported(compressor, bb.deploy(compressor), example, wide)


def _within_rules(compressor: bb.Compressor, plan: bb.Plan) -> dict[str, int]:
    """The widths of a plan, but for tensors that the spec's rules leave in float or pin."""
    quantizers = compressor.attachment.quantizers
    pinned = {name: quantizer.bits[0] for name, quantizer in quantizers.items() if len(quantizer.bits) == 1}
    return {name: pinned.get(name, width) if name in quantizers else 32 for name, width in plan.bits.items()}


def _leaves(value: Any) -> list[Tensor]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return list(items)


class Function(nn.Module):
    """A network of some layers that a function connects."""

    def __init__(self, forward: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


class Several(nn.Module):
    """Two inputs, and two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"one": self.a(x), "two": self.b(x + y)}


class Small(nn.Module):
    """A convolution that emits codes for another, an addition, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(nn.functional.relu6(self.first(x)))
        x = nn.functional.max_pool2d(x + self.third(x), 2)
        return self.head(x.mean((2, 3)))


def prove(network: nn.Module, x: Tensor, file: Path, spec: bb.Spec | None = None) -> Exported:
    """A network at 8/8, whose file is verified."""
    compressor = bb.attach(network, x, spec or bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    case = Exported(compressor, bb.deploy(compressor), x, x)
    case.verify(case.write(file))
    return case
