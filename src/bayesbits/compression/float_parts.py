"""The warnings of `attach` about parts of a network that stay in float: their share of the MACs, and custom operations.

`Topology.unsupported` lists all such parts with the reasons.
"""

import warnings
from collections import Counter

from bayesbits.compression.spec import Spec
from bayesbits.graph.layers import ATTENTION_PRODUCT, CUSTOM_OPERATION
from bayesbits.records.topology import Topology
from bayesbits.utils.short_names import MOST_NAMES, list_names

LARGEST_SHARE = 0.05
"""The share of MACs in float from which on there is a warning."""


def warn_of_float(topology: Topology, spec: Spec) -> None:
    """Warn, with the line that called the caller, where much of the network is not attached to, or where MACs are not
    known; both name the parts."""
    for text in (_share_in_float(topology, spec), _custom_operations(topology)):
        if text:
            warnings.warn(text, stacklevel=3)


def _share_in_float(topology: Topology, spec: Spec) -> str:
    """How many MACs stay in float, and which modules have most of them."""
    share = sum(entry.macs for entry in topology.unsupported) / topology.macs
    if share <= LARGEST_SHARE:
        return ""
    macs = Counter[tuple[str, str]]()
    for entry in topology.unsupported:  # a module that runs several times has several entries
        macs[entry.name or "the network", entry.what] += entry.macs
    largest = [(part, count) for part, count in macs.most_common(MOST_NAMES) if count]
    named = ", ".join(f"{name} ({what}, {count / topology.macs:.1%})" for (name, what), count in largest)
    multiplied = any(what == ATTENTION_PRODUCT and count for (_, what), count in macs.items())
    asked = multiplied and not spec.activation_products and spec.activations != "float"
    advice = ". Spec(activation_products=True) quantizes products of attention too" if asked else ""
    return (
        f"{share:.1%} of the MACs stay in float and count at 32 bits: {named}; compressor.topology.unsupported "
        f"lists all of them with the reasons{advice}"
    )


def _custom_operations(topology: Topology) -> str:
    """The modules that call custom operations, and the reason of the first."""
    custom = [entry for entry in topology.unsupported if entry.what == CUSTOM_OPERATION]
    if not custom:
        return ""
    names = list(dict.fromkeys(entry.name for entry in custom))
    return f"{list_names(names)}: {custom[0].reason}"
