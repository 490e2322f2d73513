"""The trained network with its plan fixed, where the output of every activation quantizer can be replaced.

`Simulation` runs in float32 as it was trained, `Float64Simulation` in float64 with the derived constants.
"""

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
from bayesbits.compression.final_form import make_final
from bayesbits.deploy.verification.compare_tables import TableConstants
from bayesbits.deploy.verification.derived_constants import LayerConstants
from bayesbits.deploy.verification.float64_mode import Float64Mode
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.nn.batch_norm import AttachedBatchNorm, BatchNormParts
from bayesbits.nn.layer import AttachedLayer, LayerParts
from bayesbits.nn.table import AttachedTable
from bayesbits.nn.weight_product import attached_activation_products, find_layer
from bayesbits.records.plan import Plan
from bayesbits.utils.pytree import Tree, describe
from bayesbits.utils.torch_private import BatchNorm, tree_map_only

BEYOND_ALL_RANGES = 1e30
"""A value that every quantizer clips."""


@dataclass(frozen=True)
class QuantizerCall:
    """One call of an activation quantizer."""

    tensor: str
    """The quantizer's name."""
    reader: str
    """The layer that reads the tensor; the tensor's own name where it is an operand of an addition or product."""
    index: int
    """Which of the reader's calls it is."""


Replace = Callable[[QuantizerCall, Tensor], Tensor | None]
"""A function of a quantizer's call and input that returns its output; None: the quantizer computes it itself."""


def fixed_copy(compressor: Compressor, plan: Plan) -> Compressor:
    """A copy of the trained network in evaluation mode, with its plan fixed, on the CPU."""
    fixed = Compressor(copy.deepcopy(compressor.model).cpu().float().eval())
    fixed.fix(plan)
    make_final(fixed.model, fixed.attachment)
    return fixed


class Simulation:
    """The trained network, in float32 as it was trained; `fixed` is a copy of it, whose quantizers are changed."""

    def __init__(self, fixed: Compressor) -> None:
        self.fixed = fixed
        topology = fixed.topology
        self._reader, self._calls = "", Counter[tuple[str, str]]()
        self._replace: Replace | None = None
        self.returned: Tree | None = None
        """The containers that the network returned when it ran last."""
        for name, quantizer in self.fixed.attachment.quantizers.items():
            if quantizer.mode != "off" and name not in topology.parameter_tensors:
                quantizer.forward = partial(self._quantize, name, quantizer.forward)  # type: ignore[method-assign]
        for layer in topology.layers:
            module = find_layer(self.fixed.model, layer.name)
            module.register_forward_pre_hook(partial(self._enter_layer, layer.name))

    def run(self, batch: Batch, replace: Replace) -> list[Tensor]:
        """The outputs for a batch, with the outputs of quantizers replaced; the inputs are copied."""
        self._replace = replace
        self._calls.clear()
        args, kwargs = tree_map_only(Tensor, self._copy_input, (batch.args, batch.kwargs))
        with torch.no_grad(), self._arithmetic():
            output = self.fixed.model(*args, **kwargs)
        tensors: list[Tensor] = []
        self.returned = describe(output, tensors)
        return tensors

    def _copy_input(self, x: Tensor) -> Tensor:
        return x.clone()

    def _arithmetic(self) -> Any:
        return nullcontext()

    def _enter_layer(self, layer: str, module: nn.Module, args: Any) -> None:
        self._reader = layer

    def _quantize(self, tensor: str, quantize: Callable[..., Tensor], x: Tensor, **options: Any) -> Tensor:
        topology = self.fixed.topology
        named = tensor in topology.operand_tensors or tensor in topology.product_tensors
        reader = tensor if named else self._reader
        call = QuantizerCall(tensor, reader, self._calls[tensor, reader])
        self._calls[tensor, reader] += 1
        assert self._replace is not None
        replaced = self._replace(call, x)
        return quantize(x, **options) if replaced is None else replaced


class Float64Simulation(Simulation):
    """The same network in float64: the user's code, with the derived constants in its layers.

    The derived constants have batch norm folded; the batch norm modules stay in the network, as the identity. `fixed`
    becomes this network.
    """

    def __init__(
        self, fixed: Compressor, constants: Mapping[str, LayerConstants], tables: Mapping[str, TableConstants]
    ) -> None:
        super().__init__(fixed)
        model = self.fixed.model.double()
        for table in self.fixed.topology.tables:
            for name in table.modules if table.name in tables else ():
                module = model.get_submodule(name)
                assert isinstance(module, AttachedTable)
                module.bayesbits_table.quantizers.pop(table.attribute)
                numbers = torch.as_tensor(tables[table.name].numbers).double()
                setattr(module, table.attribute, nn.Parameter(numbers, requires_grad=False))
        for layer in self.fixed.topology.layers:
            module = find_layer(model, layer.name)
            if isinstance(module, AttachedLayer):
                module.parts = LayerParts(input=module.parts.input)
                weight, bias = constants[layer.name].weight, constants[layer.name].bias
                module.set_constants(torch.as_tensor(weight), None if bias is None else torch.as_tensor(bias))
                if layer.norm is not None:
                    norm = model.get_submodule(layer.norm)
                    assert isinstance(norm, BatchNorm)
                    _make_identity(norm)

    def _arithmetic(self) -> Any:
        return Float64Mode()

    def _copy_input(self, x: Tensor) -> Tensor:
        return x.double() if x.dtype == torch.float32 else x.clone()

    @contextmanager
    def emitting(self, layers: list[str], value: float) -> Iterator[None]:
        """Let these layers and products emit one value everywhere."""
        before = {}
        products = attached_activation_products(self.fixed.model)
        for product in (products[name] for name in layers if name in products):
            product.constant = value
        for name in (name for name in layers if name not in products):
            module = find_layer(self.fixed.model, name)
            assert isinstance(module, AttachedLayer)
            before[module] = module.weight, module.bias
            size = len(self.fixed.topology.layer(name).out_channels)
            module.set_constants(torch.zeros_like(module.weight), torch.full((size,), value, dtype=torch.float64))
        try:
            yield
        finally:
            for module, (weight, bias) in before.items():
                module.set_constants(weight, bias)
            for product in products.values():
                product.constant = None


def _make_identity(norm: BatchNorm) -> None:
    """Make a batch norm the identity."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if isinstance(norm, AttachedBatchNorm):
        norm.parts = BatchNormParts()
    norm.eps = 2.0**-10  # not 0, which torch 2.11 refuses; with this variance their sum is exactly 1
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0 - norm.eps)
    for tensor, value in ((norm.weight, 1.0), (norm.bias, 0.0)):
        if tensor is not None:
            tensor.data.fill_(value)
