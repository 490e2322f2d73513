"""A check after attaching: products of two activations are found again while the network runs.

They are found by counting calls (see `utils.activation_products`), and code that torch.export leaves out, because
nothing reads its result, would shift the count. So the network runs once on its example inputs: every product has to
have the multiply-accumulates that were read from the graph.
"""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.compression.attachment import Attachment
from bayesbits.compression.observers import network_restored
from bayesbits.nn.weight_product import attached_activation_products
from bayesbits.utils.modes import evaluation_mode


def check_products_run(model: nn.Module, attachment: Attachment) -> None:
    """Raise where a product does not run as it was read; the network stays as it is."""
    if not attachment.topology.products or attachment.example_inputs is None:
        return
    counted: Counter[str] = Counter()
    products = attached_activation_products(model)
    handles = [product.register_forward_hook(partial(_count, counted, name)) for name, product in products.items()]
    args, kwargs = attachment.example_inputs
    before, attachment.calibrated = attachment.calibrated, True
    try:
        with network_restored(model), evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            for quantizer in attachment.quantizers.values():
                quantizer.turn_off()
            model(*args, **kwargs)
    finally:
        attachment.calibrated = before
        for handle in handles:
            handle.remove()
    for product in attachment.topology.products:
        if products[product.name].is_quantized and counted[product.name] != product.macs:
            raise ValueError(
                f"{product.name} has {counted[product.name]:,} MACs when the network runs and {product.macs:,} in its "
                f"graph: a call of {product.operation} beside it is not in the graph, because nothing reads its "
                "result, or only runs sometimes. To fix this: remove that call, or Spec(activation_products=False)"
            )


def _count(counted: Counter[str], name: str, _: nn.Module, operands: tuple[Any, ...], output: Tensor) -> None:
    counted[name] += output.numel() * operands[0].shape[-1]
