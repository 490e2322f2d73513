"""The names by which the graph of a deployed network refers to modules and tensors.

A layer is "layers.KEY", and likewise "products.KEY", "tables.KEY", "quantizers.KEY" and "dequantizers.KEY"; a float
tensor is "floats.KEY". KEY is made from the user's name by `utils.naming.key_of`.
"""

from bayesbits.utils.naming import key_of

LAYERS, PRODUCTS, TABLES, QUANTIZERS, DEQUANTIZERS = "layers", "products", "tables", "quantizers", "dequantizers"
FLOATS = "floats"


def target_of(folder: str, name: str) -> str:
    """The target of the nodes that refer to a layer, a grid or a tensor, by the folder that holds it and its name."""
    return f"{folder}.{key_of(name)}"
