"""Which layer loses most: the error of each layer or product alone, and of all up to it, against the float network.

A line has the simulation, which was trained; marks have the integer network, where it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesbits.records.tensor_statistics import LayerError, TensorStatistics
from bayesbits.report.chart import Chart, Series
from bayesbits.report.network_graph import running_numbers
from bayesbits.report.run_data import Run

_MARKED = 30  # layers whose points are marked; more marks would hide the line


@dataclass(frozen=True)
class WorstLayer:
    """A layer that loses much, and where it lies."""

    place: int
    """Its number from the input, as in the charts."""
    name: str
    ratio: float
    """The signal-to-noise ratio in dB with this layer alone rounded."""


def layer_numbers(run: Run) -> dict[str, int]:
    """The places of the layers that have errors: those of the picture, or without a topology those of measuring."""
    if run.topology is not None:
        return running_numbers(run.topology)
    errors = () if run.statistics is None else run.statistics.layers
    return {one.name: place for place, one in enumerate(errors, start=1)}


def worst_layers(errors: Sequence[LayerError], numbers: Mapping[str, int], number: int = 5) -> list[WorstLayer]:
    """The layers that lose most when they alone are rounded, the worst first; `numbers` are their places."""
    found = [
        WorstLayer(numbers[one.name], one.name, one.alone)
        for one in errors
        if one.alone is not None and one.name in numbers
    ]
    return sorted(found, key=lambda one: one.ratio)[:number]


def error_charts(statistics: TensorStatistics | None, numbers: Mapping[str, int]) -> list[Chart]:
    """The error of each layer alone, and that of all up to it, at their places from the input to the output."""
    if statistics is None:
        return []
    rows = (("Each layer alone", "alone"), ("All layers up to it", "together"))
    return [chart for title, name in rows if (chart := _chart(statistics, title, name, numbers)).shown]


def _chart(statistics: TensorStatistics, title: str, name: str, numbers: Mapping[str, int]) -> Chart:
    series = [
        _series("simulated", statistics.layers, name, numbers, 1, line=True),
        _series("deployed", statistics.deployed, name, numbers, 2, line=False),
    ]
    return Chart(title, "layers, from the input to the output", series, unit=" dB", whole=True, from_zero=False)


def _series(
    title: str, errors: Sequence[LayerError], name: str, places: Mapping[str, int], style: int, *, line: bool
) -> Series:
    found = sorted(
        (places[one.name], value, one.name)
        for one in errors
        if one.name in places and (value := getattr(one, name)) is not None
    )
    return Series(
        title, [(place, value) for place, value, _ in found], style, line=line,
        dots=len(found) <= _MARKED,
        notes=[f"{place}. {layer}\n{title}, {_WORDS[name]}: {value:.1f} dB" for place, value, layer in found],
    )  # fmt: skip


_WORDS = {"alone": "this layer alone", "together": "all layers up to it"}
