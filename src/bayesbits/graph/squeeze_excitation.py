"""Finding squeeze and excitation: an image times a sigmoid for each of its channels, in front of a quantizer.

The sigmoid is computed from the means of the image's channels. If image and sigmoid are codes, the mean and the product
are operations on integers (see `deploy.onnx.squeeze_excitation_nodes`). So the sigmoid gets a quantizer of its own,
whose range is known; a sigmoid that only clips has one in front of it. The image is codes already where a layer emits
it, also behind a ReLU. A concatenation of such images gets a quantizer that shares their range and rounds nothing, and
a hard-swish of emitted codes gets one, too, as it is a product of integers then. Behind other float functions, such as
SiLU, a quantizer costs as much as it saves, and everything stays as it is.
"""

from __future__ import annotations

from torch import fx

from bayesbits.graph.emitted import Origins, OutputSearch
from bayesbits.graph.exported_program import Program, operation, shape
from bayesbits.graph.hard_swish import hard_swish_of, is_sigmoid
from bayesbits.graph.operations import AVERAGES
from bayesbits.graph.residual import module_output

IMAGE = 4
"""The axes of an image with channels: batch, channel, height and width."""


def find_squeeze_excitations(
    program: Program, search: OutputSearch, origins: Origins
) -> tuple[dict[str, fx.Node], dict[str, fx.Node]]:
    """The images and the sigmoids that are to be quantized for such products, each named "module.output".

    Args:
        program: The network.
        search: Knows which tensors are read through one quantizer alone.
        origins: The tensors that have quantizers already, and what is made of them by moving codes.
    """
    swishes = {swish for node in origins.name_of if (swish := hard_swish_of(node)) is not None}
    images: dict[str, fx.Node] = {}
    sigmoids: dict[str, fx.Node] = {}
    for product in program.nodes:
        found = _operands(product)
        if found is None or not search.is_quantized(product):
            continue
        image, factors = found
        gate = _place(program, factors) if is_sigmoid(factors) and list(factors.users) == [product] else None
        if gate is None and not _is_emitted(factors, origins):
            continue
        if not _is_emitted(image, origins):
            made_of_codes = image in swishes or origins.of(image) is not None
            place = _place(program, image) if made_of_codes and _only_gated(image, product) else None
            if place is None:
                continue
            images[place] = image
        if gate is not None:
            sigmoids[gate] = factors
    return images, sigmoids


def _operands(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The image that a node multiplies, and the numbers for its channels; None where it does something else."""
    operands = product.all_input_nodes
    if operation(product) != "mul" or len(operands) != 2:
        return None
    for image, factors in (operands, operands[::-1]):
        each = len(shape(image)) == IMAGE and shape(factors) == (*shape(image)[:2], 1, 1)
        if each and shape(image) != shape(factors):
            return image, factors
    return None


def _place(program: Program, node: fx.Node) -> str | None:
    """The name of a tensor that is the output of a module; None where a quantizer has no place behind it."""
    place = module_output(program, node)
    return f"{place[0]}.output" if place is not None and place[1] is node else None


def _is_emitted(node: fx.Node, origins: Origins) -> bool:
    """Whether a tensor has a quantizer, behind which it is clipped or moved, but not concatenated."""
    while node not in origins.name_of:
        if operation(node) == "cat" or origins.of(node) is None:
            return False
        node = node.all_input_nodes[0]
    return True


def _only_gated(image: fx.Node, product: fx.Node) -> bool:
    """Whether nothing but this product and means read an image."""
    others = [reader for reader in image.users if reader is not product]
    return all(AVERAGES.fullmatch(operation(reader)) for reader in others)
