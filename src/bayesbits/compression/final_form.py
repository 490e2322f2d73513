"""The final form of a network: plain grids, weights that lie on them, and batch norms with the scale that they have.

A method may find the codes of a weight in its own way, by thresholds or by probabilities. For deployment every weight
is written as the numbers that its layer multiplies with, and every quantizer becomes a `FinalQuantizer`, which rounds
to the nearest code: from numbers on the grid it finds the same codes again. A weight that is computed from other
parameters cannot be written, and is deployed where its method rounds to the nearest code itself. What deploys and
verifies a network then knows one kind of grid alone. And batch norms that are folded into no layer are written with the
scale that they multiply with, which is zero for steady channels.

What cannot have that form is known as soon as it is attached, and `warn_of_undeployable` says so before any training.
"""

import warnings
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
from bayesbits.utils.short_names import list_names


def warn_of_undeployable(model: nn.Module, attachment: Attachment) -> None:
    """Warn, with the line that called the caller, where the trained network could not be deployed."""
    reasons = undeployable(model, attachment)
    if reasons:
        warnings.warn(
            f"this network can be trained, and cannot be deployed with {list_names(list(reasons))}: "
            f"{next(iter(reasons.values()))}",
            stacklevel=3,
        )


def undeployable(model: nn.Module, attachment: Attachment) -> dict[str, str]:
    """Why a tensor cannot be deployed, by the names of those that cannot."""
    found = {}
    for name, quantizer in attachment.quantizers.items():
        if quantizer.not_deployable:
            found[name] = quantizer.not_deployable
        elif not quantizer.rounds_to_nearest and _is_computed(model, attachment, name):
            found[name] = (
                "it is computed from other parameters, and the codes of the method "
                f"{attachment.spec.method!r} cannot be written into it. Attach with a rule that gives it another "
                "width, such as 8, or with another method"
            )
    return found


def _is_computed(model: nn.Module, attachment: Attachment, parameter: str) -> bool:
    """Whether a weight is computed from parameters, and cannot be written."""
    module = find_layer(model, attachment.topology.weight_tensors[parameter][0])
    assert isinstance(module, AttachedLayer)
    return module.stored_weight is None


def make_final(model: nn.Module, attachment: Attachment) -> None:
    """Write scales of batch norms, and replace the quantizers of another method by final ones, in place.

    The network is fixed and in evaluation mode.

    Raises:
        ValueError: A tensor lies on a grid that is not deployed; the message names it.
    """
    for name, reason in undeployable(model, attachment).items():
        raise ValueError(f"{name} cannot be deployed: {reason}")
    _write_scales(model, attachment)
    quantizers = {name: q for name, q in attachment.quantizers.items() if isinstance(q, MethodQuantizer)}
    if not quantizers:
        return
    write_weights(model, attachment, quantizers)
    final = {
        name: FinalQuantizer(
            quantizer.beta, bits=quantizer.effective_bits(), signed=quantizer.signed, last_code=quantizer.last_code
        )
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
