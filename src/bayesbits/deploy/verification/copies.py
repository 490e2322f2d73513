"""Copies of the trained network whose quantizers ask what to return."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.verification.derived import Constants
from bayesbits.deploy.verification.exact import InDouble
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.nn.batch_norm import AttachedBatchNorm, BatchNormParts
from bayesbits.nn.layer import AttachedLayer, LayerParts
from bayesbits.records.plan import Plan
from bayesbits.utils.pytree import Tree, describe
from bayesbits.utils.torch_private import BatchNorm, tree_map_only

FAR = 1e30
"""Beyond the end of every range."""


@dataclass(frozen=True)
class Call:
    """One call of a quantizer."""

    tensor: str
    """The quantizer's name."""
    reader: str
    """The layer that reads the tensor; the tensor's own name where it is an operand of additions."""
    index: int
    """Which of the reader's calls it is."""


Answer = Callable[[Call, Tensor], Tensor | None]
"""What a quantizer returns for the numbers that arrive at it; None: what it was trained to return."""


def fixed_copy(compressor: Compressor, plan: Plan) -> Compressor:
    """The trained network as it is evaluated, with its plan final, on the CPU."""
    fixed = Compressor(copy.deepcopy(compressor.model).cpu().float().eval())
    fixed.fix(plan)
    return fixed


class Copy:
    """The trained network, in float32 as it was trained."""

    def __init__(self, compressor: Compressor, plan: Plan) -> None:
        self.fixed = fixed_copy(compressor, plan)
        topology = self.fixed.topology
        self._reader, self._calls = "", Counter[tuple[str, str]]()
        self._answer: Answer | None = None
        self.form: Tree | None = None
        """What the network returned when it ran last."""
        for name, quantizer in self.fixed.attachment.quantizers.items():
            if quantizer.mode != "off" and name not in topology.weight_tensors:
                quantizer.forward = partial(self._arrived, name, quantizer.forward)  # type: ignore[method-assign]
        for layer in topology.layers:
            module = self.fixed.model.get_submodule(layer.name)
            module.register_forward_pre_hook(partial(self._entered, layer.name))

    def run(self, batch: Batch, answer: Answer) -> list[Tensor]:
        """The outputs, of copies of the inputs."""
        self._answer = answer
        self._calls.clear()
        args, kwargs = tree_map_only(Tensor, self._input, (batch.args, batch.kwargs))
        with torch.no_grad(), self._arithmetic():
            output = self.fixed.model(*args, **kwargs)
        tensors: list[Tensor] = []
        self.form = describe(output, tensors)
        return tensors

    def _input(self, x: Tensor) -> Tensor:
        return x.clone()

    def _arithmetic(self) -> Any:
        return nullcontext()

    def _entered(self, layer: str, module: nn.Module, args: Any) -> None:
        self._reader = layer

    def _arrived(self, tensor: str, quantize: Callable[..., Tensor], x: Tensor, **options: Any) -> Tensor:
        reader = tensor if tensor in self.fixed.topology.operand_tensors else self._reader
        call = Call(tensor, reader, self._calls[tensor, reader])
        self._calls[tensor, reader] += 1
        assert self._answer is not None
        answer = self._answer(call, x)
        return quantize(x, **options) if answer is None else answer


class ExactCopy(Copy):
    """The same network in float64: its code as it is, its layers with the constants that were derived.

    A layer has its batch norm folded, as codes times steps are only then what they are deployed as; the batch norm
    stays where it is, with nothing left to do.
    """

    def __init__(self, compressor: Compressor, plan: Plan, constants: Mapping[str, Constants]) -> None:
        super().__init__(compressor, plan)
        model = self.fixed.model.double()
        for layer in self.fixed.topology.layers:
            module = model.get_submodule(layer.name)
            if isinstance(module, AttachedLayer):
                module.parts = LayerParts(input=module.parts.input)
                _set(module, constants[layer.name].weight, constants[layer.name].bias)
                if layer.norm is not None:
                    norm = model.get_submodule(layer.norm)
                    assert isinstance(norm, BatchNorm)
                    _silence(norm)

    def _arithmetic(self) -> Any:
        return InDouble()

    def _input(self, x: Tensor) -> Tensor:
        return x.double() if x.dtype == torch.float32 else x.clone()

    @contextmanager
    def emitting(self, layers: list[str], value: float) -> Iterator[None]:
        """Let these layers emit one number everywhere."""
        before = {}
        for name in layers:
            module: Any = self.fixed.model.get_submodule(name)
            before[name] = module.weight, module.bias
            size = len(self.fixed.topology.layer(name).out_channels)
            _set(module, torch.zeros_like(module.weight), torch.full((size,), value, dtype=torch.float64))
        try:
            yield
        finally:
            for name, (weight, bias) in before.items():
                module = self.fixed.model.get_submodule(name)
                module.weight, module.bias = weight, bias


def _set(module: Any, weight: Any, bias: Any) -> None:
    module.weight = nn.Parameter(torch.as_tensor(weight), requires_grad=False)
    module.bias = None if bias is None else nn.Parameter(torch.as_tensor(bias), requires_grad=False)


def _silence(norm: BatchNorm) -> None:
    """Make a batch norm the identity."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if isinstance(norm, AttachedBatchNorm):
        norm.parts = BatchNormParts()
    norm.eps = 0.0
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)
    for tensor, value in ((norm.weight, 1.0), (norm.bias, 0.0)):
        if tensor is not None:
            tensor.data.fill_(value)
