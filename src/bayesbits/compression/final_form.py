"""The final form of a network: plain grids, weights that lie on them, and batch norms with the scale that they have.

A method may find the codes of a weight in its own way, by thresholds or by probabilities. For deployment every weight
is written as the numbers that its layer multiplies with, and every quantizer becomes a `FinalQuantizer`, which rounds
to the nearest code: from numbers on the grid it finds the same codes again. A weight that is computed from other
parameters cannot be written, and is deployed where its method rounds to the nearest code itself. What deploys and
verifies a network then knows one kind of grid alone. And batch norms that are folded into no layer are written with the
scale that they multiply with, which is zero for steady channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from bayesbits.compression.attachment import Attachment
from bayesbits.methods import MethodQuantizer
from bayesbits.nn.batch_norm import AttachedBatchNorm
from bayesbits.nn.final_quantizer import FinalQuantizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.nn.quantizer import Quantizer
from bayesbits.nn.weight_product import attached_activation_products, find_layer
from bayesbits.utils.naming import key_of


def make_final(model: nn.Module, attachment: Attachment) -> None:
    """Write scales of batch norms, and replace the quantizers of another method by final ones, in place.

    The network is fixed and in evaluation mode.

    Raises:
        ValueError: A tensor lies on a grid that is not deployed; the message names it.
    """
    _write_scales(model, attachment)
    quantizers = {name: q for name, q in attachment.quantizers.items() if isinstance(q, MethodQuantizer)}
    for name, quantizer in quantizers.items():
        if quantizer.not_deployable:
            raise ValueError(f"{name} cannot be deployed: {quantizer.not_deployable}")
    if not quantizers:
        return
    for name in write_weights(model, attachment, quantizers):
        if not quantizers[name].rounds_to_nearest:
            raise ValueError(
                f"{name} is computed from other parameters, and its codes cannot be written into it: the method "
                f"{attachment.spec.method!r} deploys weights that are parameters. Attach with a rule that gives it "
                "another width, such as 8, or with another method"
            )
    final = {
        name: FinalQuantizer(quantizer.beta, bits=quantizer.effective_bits(), signed=quantizer.signed)
        for name, quantizer in quantizers.items()
    }
    for layer in attachment.topology.layers:
        module = find_layer(model, layer.name)
        if isinstance(module, AttachedLayer):
            module.parts.weight = final.get(layer.parameter, module.parts.weight)
            module.parts.input = final.get(layer.activation, module.parts.input)
    for product in attachment.topology.products:
        parts = attached_activation_products(model)[product.name].parts
        parts.left, parts.right = final.get(product.left, parts.left), final.get(product.right, parts.right)
    for name, replacement in final.items():
        attachment.tensors[key_of(name)] = replacement


def _write_scales(model: nn.Module, attachment: Attachment) -> None:
    """Write the scale of every batch norm that is folded into no layer as it is multiplied with."""
    for name in attachment.steady_channels:
        norm = model.get_submodule(name)
        assert isinstance(norm, AttachedBatchNorm)
        scale = norm.effective_scale()
        assert scale is not None
        with torch.no_grad():
            norm.get_parameter("weight").copy_(scale)


def write_weights(model: nn.Module, attachment: Attachment, quantizers: Mapping[str, Quantizer]) -> list[str]:
    """Write the weights with these quantizers as they are multiplied with; returns those that are no parameters."""
    computed = []
    for parameter, layers in attachment.topology.weight_tensors.items():
        if parameter not in quantizers:
            continue
        module = find_layer(model, layers[0])
        assert isinstance(module, AttachedLayer)
        with torch.no_grad():
            multiplied = module.effective_weight()
            if module.stored_weight is None:
                computed.append(parameter)
            else:
                module.weight.copy_(multiplied)
    return computed
