"""Which modules of a network are its blocks: those with a residual addition, and the others of the same class.

Rounding errors of the layers in a block add up before the next block reads them, and the layers of a block can make up
for each other's errors. Blocks are found from the network: of every residual addition the smallest module around it
with at least two layers. Modules of the same class are blocks too, such as those whose shapes leave no room for a
shortcut. Of two blocks one inside of the other, the inner one counts. A layer in no block is reconstructed by itself,
as are those of a module that runs several times, or that does not take and return tensors with the examples on their
first axis.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.layerwise import attached_layer
from bayesbits.baselines.reconstruction_units import BlockUnit
from bayesbits.compression.compressor import Compressor
from bayesbits.nn import Quantizer
from bayesbits.nn.class_exchange import AttachedModule
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantized_output import QuantizedOutput
from bayesbits.nn.weight_product import ProductOwner
from bayesbits.utils.batches import call_without_labels, count_examples
from bayesbits.utils.torch_private import tree_leaves


def find_blocks(compressor: Compressor, model: nn.Module, batch: Any) -> dict[str, tuple[str, ...]]:
    """The layers of every block, by the block's module, in running order.

    `model` is the float network, which is run once on a batch.
    """
    inside = _layers_inside(compressor)
    with_additions = set()
    for addition in compressor.topology.additions:
        path = addition.name.rpartition(".")[0]
        while path and len(inside.get(path, ())) < 2:
            path = path.rpartition(".")[0]
        if path and len(addition.operands) > 1:
            with_additions.add(path)
    kinds = {_class(compressor.model.get_submodule(path)) for path in with_additions}
    named = [
        name
        for name, layers in inside.items()
        if name and len(layers) > 1 and _class(compressor.model.get_submodule(name)) in kinds
    ]
    blocks = [name for name in named if not any(other.startswith(f"{name}.") for other in named)]
    usable = _usable(model, blocks, batch)
    once = {layer.name for layer in compressor.topology.layers if layer.calls == 1}
    return {name: inside[name] for name in inside if name in usable and once.issuperset(inside[name])}


def block_unit(compressor: Compressor, name: str, learned: list[str]) -> BlockUnit:
    """A block of these layers, with the activation quantizers inside of it."""
    module = compressor.model.get_submodule(name)
    layers = [(label, attached_layer(compressor, label)) for label in learned]
    quantizers: dict[int, Quantizer] = {}
    for one in module.modules():
        found = [one.bayesbits_output.quantizer] if isinstance(one, QuantizedOutput) else []
        layers_here: list[nn.Module] = [one]
        if isinstance(one, ProductOwner):
            layers_here += one.bayesbits_products.products.values()
            multiplied = one.bayesbits_products.activation_products.values()
            both = [(product.parts.left, product.parts.right) for products in multiplied for product in products]
            found += [quantizer for pair in both for quantizer in pair if quantizer is not None]
        for layer in layers_here:
            if isinstance(layer, AttachedLayer) and layer.parts.input is not None:
                found.append(layer.parts.input)
        quantizers |= {id(quantizer): quantizer for quantizer in found}
    return BlockUnit(
        name, module, [(label, layer) for label, layer in layers if layer is not None], list(quantizers.values())
    )


def _layers_inside(compressor: Compressor) -> dict[str, tuple[str, ...]]:
    """For every module that holds layers the names of these, in running order."""
    inside: dict[str, tuple[str, ...]] = {}
    for layer in compressor.topology.layers:
        path = layer.name
        while path:
            path = path.rpartition(".")[0]
            inside[path] = (*inside.get(path, ()), layer.name)
    return inside


def _class(module: nn.Module) -> type:
    """The class that the user wrote, under what is attached."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, AttachedModule))


def _usable(model: nn.Module, names: list[str], batch: Any) -> set[str]:
    """The modules that run once, and return one float tensor with as many examples as a tensor among their inputs."""
    calls: dict[str, list[bool]] = {}

    def watch(name: str) -> Any:
        def see(_module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            fits = isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1
            fits = fits and len(output) == count_examples(batch)
            given = [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor) and leaf.dim()]
            calls.setdefault(name, []).append(fits and any(len(leaf) == len(output) for leaf in given))

        return model.get_submodule(name).register_forward_hook(see, with_kwargs=True)

    handles = [watch(name) for name in names]
    try:
        with torch.no_grad():
            call_without_labels(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name for name, fits in calls.items() if fits == [True]}
