"""`bb.attach`: quantizers and gates are put into the user's live network, in place.

The steps, in the order of the calls below: `graph.trace` reads its topology, `compression.attachment` makes
quantizers and gates for it, and the classes of its layers, norms, outputs and root are exchanged for ones that use them
(`nn.layer`, `nn.weight_product`, `nn.table`, `nn.recurrent`, `nn.batch_norm`, `nn.instance_norm`,
`nn.quantized_output`, `nn.network`). Finally every weight gets its range.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bayesbits.compression.attachment import Attachment, detach_from, find_attachment
from bayesbits.compression.calibration import calibrate_weights, calibrated_quantizers
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.final_form import warn_of_undeployable
from bayesbits.compression.float_parts import warn_of_float
from bayesbits.compression.latency_prices import LatencyPrices
from bayesbits.compression.penalties import ExpectedLatencyPenalty
from bayesbits.compression.product_check import check_products_run
from bayesbits.compression.shared_outputs import without_shared_outputs
from bayesbits.compression.smallest_plan import check_table
from bayesbits.compression.spec import Spec
from bayesbits.graph.activation_products import FoundProduct
from bayesbits.graph.layers import FoundLayer
from bayesbits.graph.trace import trace_layers
from bayesbits.nn.activation_product import OperandQuantizers
from bayesbits.nn.batch_norm import BatchNormParts, attach_batch_norm
from bayesbits.nn.class_exchange import AttachedModule
from bayesbits.nn.instance_norm import attach_instance_norm
from bayesbits.nn.layer import AttachedLayer, LayerParts, attach_layer
from bayesbits.nn.network import NAME, attach_to_network
from bayesbits.nn.quantized_output import Output, attach_output
from bayesbits.nn.recurrent import AttachedRecurrent
from bayesbits.nn.table import AttachedEmbedding, attach_table
from bayesbits.nn.weight_product import ProductSource, attach_activation_product, attach_product
from bayesbits.records.topology import RECURRENT, Layer
from bayesbits.utils.torch_private import BatchNorm, is_compiled


def attach(model: nn.Module, example_inputs: Any, spec: Spec | None = None) -> Compressor:
    """Make every layer of a network learn its bit widths and channels, in place.

    The network keeps its structure, its parameters and their names; it computes with quantized weights and activations
    from now on, as soon as `Compressor.calibrate` has set the ranges. Where attaching fails, the network is left as it
    was. A layer is every convolution, linear layer or matrix product with a weight that is a parameter or is computed
    from parameters alone, whatever calls it. Of recurrent layers and embeddings only the weights are quantized.
    A warning says where more than 5% of the multiply-accumulates stay in float, another one names operations that are
    none of torch's own: with them a network cannot be saved or exported. A third one names weights that a method trains
    and that cannot be deployed.

    Args:
        model: The float network, not compiled.
        example_inputs: What the network is called with: a tensor, a tuple of positional inputs or a dict of keyword
            inputs, on the model's device. The network is read with them, and costs are counted for their shape.
        spec: How the network is to be compressed; `Spec()` by default.

    Returns:
        The handle to the network.

    Raises:
        TypeError: `model` is no `nn.Module`, or `spec` no `Spec`.
        ValueError: The network has quantizers attached already, is compiled, or has no layer to attach to, or a rule of
            the spec does not fit it.

    Example::

        >>> import torch, bayesbits as bb
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> compressor = bb.attach(model, torch.randn(2, 8), bb.Spec(bits=(2, 4, 8)))
        >>> compressor.calibrate([torch.randn(32, 8)])
        >>> model(torch.randn(2, 8)).shape
        torch.Size([2, 4])
    """
    check_free(model)
    spec = Spec() if spec is None else spec
    if not isinstance(spec, Spec):
        raise TypeError(f"the spec is a {type(spec).__name__}; it is a bayesbits.Spec, such as Spec(bits=(2, 4, 8))")
    topology, found, products = trace_layers(model, example_inputs, activation_products=spec.activation_products)
    topology = without_shared_outputs(model, topology, example_inputs)
    warn_of_float(topology, spec)
    attachment = Attachment(topology, spec, example_inputs)
    if isinstance(attachment.penalty, ExpectedLatencyPenalty):
        check_table(attachment, attachment.penalty.table)
        attachment.penalty = LatencyPrices(attachment, attachment.penalty.table)
    try:
        _attach_to_modules(model, attachment, {layer.name: layer for layer in found})
        _attach_to_products(model, attachment, products)
        attach_to_network(model, attachment)
        check_products_run(model, attachment)
        calibrate_weights(model, attachment)
        attachment.calibrated = not calibrated_quantizers(attachment)  # some networks have no range to take from data
        warn_of_undeployable(model, attachment)
    except BaseException:
        detach_from(model)
        raise
    return Compressor(model)


def check_free(model: nn.Module) -> None:
    """Raise unless quantizers can be attached to the network."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantizers are attached to an nn.Module, and this is a {type(model).__name__}")
    if is_compiled(model):
        raise ValueError("attach to the network itself and compile it afterwards: torch.compile(model) after attach")
    if find_attachment(model) is not None:
        raise ValueError(
            "this network, or a part of it, has quantizers attached already: call compressor.detach() first"
        )
    if any(isinstance(module, AttachedModule) for module in model.modules()):
        raise ValueError(
            "this is a part of a network that has quantizers attached: attach to the whole network, or call "
            "compressor.detach() first"
        )
    if hasattr(model, NAME):
        raise ValueError(f"the network has an attribute {NAME!r}, and that name is needed for what is attached")


def _attach_to_modules(model: nn.Module, attachment: Attachment, found: Mapping[str, FoundLayer]) -> None:
    """Make layers, their norms, tables, and the modules that emit operands use their quantizers and gates."""
    skipped = attachment.search_space.skipped
    if all(layer.name in skipped for layer in attachment.topology.layers):
        raise ValueError("the rules skip every layer of this network: there is nothing to attach to")
    for layer in attachment.topology.layers:
        source = found.get(layer.name)
        if layer.name not in skipped:
            _attach_to_layer(model, layer, attachment, source)
        elif source is not None and source.product is not None:  # so that its weight can be read
            _attach(model, layer.name, LayerParts(), source)
    for name, channels in attachment.steady_channels.items():
        free = model.get_submodule(name)
        assert isinstance(free, BatchNorm)
        attach_batch_norm(free, BatchNormParts(steady=channels))
    for tensor, table in attachment.topology.table_tensors.items():
        for name in table.modules if tensor in attachment.quantizers else ():
            module, quantizer = model.get_submodule(name), attachment.quantizers[tensor]
            mixin = AttachedRecurrent if table.kind == RECURRENT else AttachedEmbedding
            attach_table(module, table.attribute, quantizer, attachment.calibration, mixin)
    for tensor, name in attachment.topology.operand_tensors.items():
        if tensor in attachment.quantizers:
            output = Output(attachment.quantizers[tensor], name, attachment.calibration)
            attach_output(model.get_submodule(name), output)


def _attach_to_products(model: nn.Module, attachment: Attachment, products: Sequence[FoundProduct]) -> None:
    """Make products of two activations quantize their operands."""
    for product in products:
        left, right = (attachment.quantizers.get(tensor) for tensor in (product.left, product.right))
        parts = OperandQuantizers(left, right, attachment.calibration)
        attach_activation_product(model.get_submodule(product.owner), product.name, product.call, parts)


def _attach_to_layer(model: nn.Module, layer: Layer, attachment: Attachment, source: FoundLayer | None) -> None:
    norm = None if layer.norm is None else model.get_submodule(layer.norm)
    assert norm is None or isinstance(norm, BatchNorm)
    # Tied weights have one grid, and may have several batch norms; transposed groups have no axis to fold along.
    tied = len(attachment.topology.weight_tensors[layer.parameter]) > 1
    folded = norm is not None and not tied and (layer.kind != "conv_transpose" or layer.groups == 1)
    folded = folded and attachment.folds
    gate = attachment.gate_of(layer.name)
    behind = None if layer.instance_norm is None else model.get_submodule(layer.instance_norm)
    parts = LayerParts(
        weight=attachment.quantizers.get(layer.parameter),
        input=attachment.quantizers.get(layer.activation),
        gate=gate if norm is None else None,
        gate_when_final=behind is not None,
        norm=norm if folded else None,
        norm_behind=norm,
        group_size=attachment.group_size(layer.parameter),
        rounds_bias=norm is None,
        calibration=attachment.calibration,
    )
    module = _attach(model, layer.name, parts, source)
    if norm is not None:
        attach_batch_norm(norm, BatchNormParts(gate=gate, layer=module))
    if behind is not None and gate is not None:
        attach_instance_norm(behind, gate)


def _attach(model: nn.Module, name: str, parts: LayerParts, source: FoundLayer | None) -> AttachedLayer:
    """Attach parts to a module, or to a product that the code of another module computes."""
    product = None if source is None else source.product
    if source is None or product is None:
        return attach_layer(model.get_submodule(name), parts)
    known = ProductSource(product.call, source.kind, product.weight, product.bias, product.geometry)
    return attach_product(model.get_submodule(product.owner), name, known, parts)
