"""Which layer loses most: the error of each layer alone, and of all layers up to it, against the float network."""

from __future__ import annotations

from collections.abc import Sequence

from bayesbits.records.tensor_statistics import LayerError
from bayesbits.report.chart import Chart, Series


def worst_layers(errors: Sequence[LayerError], number: int = 5) -> list[LayerError]:
    """The layers that lose most when they alone are rounded, the worst first."""
    found = [error for error in errors if error.alone is not None]
    return sorted(found, key=lambda error: error.alone or 0.0)[:number]


def error_chart(errors: Sequence[LayerError]) -> Chart | None:
    """The error of each layer alone and of all up to it, in the order in which they run."""
    alone = {place: error.alone for place, error in enumerate(errors, 1) if error.alone is not None}
    together = {place: error.together for place, error in enumerate(errors, 1) if error.together is not None}
    rows = [("this layer alone", 1, alone), ("all layers up to it", 2, together)]
    series = [
        Series(
            name, list(values.items()), style, dots=len(errors) <= 60,
            notes=[f"{errors[place - 1].name}: {value:.1f} dB" for place, value in values.items()],
        )
        for name, style, values in rows
    ]  # fmt: skip
    chart = Chart(
        "Signal-to-noise ratio of the layers' outputs", "layers, from the input to the output", series, unit=" dB",
        whole=True, from_zero=False,
    )  # fmt: skip
    return chart if chart.shown else None
