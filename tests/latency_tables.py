"""Made-up latency tables: times by a formula, so that no test depends on a clock."""

from bayesbits.records.latency_table import FORMS, LatencyTable, LayerShape, Overhead

FACTORS = {"codes": 1.0, "numbers": 1.5, "float": 3.0}
CALL, PAIR, ELEMENT, LEAST = 0.01, 1e-5, 1e-6, 0.002
OVERHEADS = (
    Overhead(8, 0.5, 1.0, 0.015),
    Overhead(8, 1.0, 2.0, 0.02),
    Overhead(16, 0.5, 3.0, 0.04),
    Overhead(16, 1.0, 4.0, 0.06),
    Overhead(32, 1.0, 5.0, 0.03),
)


def row_ms(shape, form, inputs, outputs):
    """The made-up time of a layer with so many channels: a constant, and a part for every pair of channels."""
    pairs = outputs if not shape.in_counts else inputs * outputs
    return CALL + FACTORS[form] * PAIR * pairs


def made_up_table(topology, *, forms=FORMS, overheads=OVERHEADS, counts=4):
    """A table of a network, in which every layer has the given forms and a few numbers of channels."""
    layers = tuple(_shape(topology, layer, forms, counts) for layer in topology.layers)
    rows = {}
    for shape in layers:
        for form in shape.forms:
            for inputs in shape.in_counts or (0,):
                for outputs in shape.out_counts:
                    rows[shape.row(form, inputs, outputs)] = row_ms(shape, form, inputs, outputs)
        for row in shape.rows():
            if row not in rows:
                rows[row] = LEAST + ELEMENT * (int(row.split()[1]) - 1)
    return LatencyTable("a made-up processor", "a runtime 1.0", 1, layers, rows, overheads)


def _shape(topology, layer, forms, counts):
    emits = next(
        (other.activation for other in topology.layers if set(other.in_channels) == set(layer.out_channels)), None
    )
    return LayerShape(
        name=layer.name,
        kernel=layer.name,
        weight_shape=layer.weight_shape,
        macs=layer.macs,
        forms=tuple(forms),
        emits=emits if not layer.depthwise else None,
        in_counts=() if layer.depthwise else _counts(len(layer.in_channels), counts),
        out_counts=_counts(len(layer.out_channels), counts),
        in_elements=100 * len(layer.in_channels),
        out_elements=100 * len(layer.out_channels),
        image=False,
        calls=layer.calls,
    )


def _counts(full, counts):
    return tuple(sorted({max(1, full * part // counts) for part in range(1, counts + 1)} | {1}))


def conversion_ms(channels, full):
    """The made-up time of a quantizer, of so many of its channels."""
    return LEAST + ELEMENT * (100 * full - 1) * channels / full
