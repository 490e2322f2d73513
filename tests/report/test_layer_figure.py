"""Bars are as long as what they stand for."""

import pytest

from bayesbits.report.layer_figure import LAYERS_PER_FIGURE, LayerBars, layer_figures
from tests.report.parsing import Page

LAYERS = [
    LayerBars("first", 4, 8, 3, 3, 48, 64, 20.0),
    LayerBars("second", 2, 32, 48, 64, 10, 10, 80.0),
]


def widths(page, kind):
    """Of all bars of a kind, without the square of the legend."""
    return [float(bar["width"]) for bar in page.all("rect", class_=kind) if bar["height"] != "9"]


def full_length(page, kind):
    """Of the track behind the first bar of a kind."""
    bar = next(bar for bar in page.all("rect", class_=kind) if bar["height"] != "9")
    (track,) = page.all("rect", class_="track", x=bar["x"], y=bar["y"])
    return float(track["width"])


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("weights", [4 / 32, 2 / 32]),
        ("activations", [8 / 32, 1]),
        ("channels-in", [1, 48 / 64]),
        ("channels-out", [48 / 64, 1]),
        ("share", [20 / 80, 1]),
    ],
)
def test_bars_are_in_proportion(kind, parts):
    (figure,) = layer_figures(LAYERS)
    page = Page(figure)
    assert widths(page, kind) == pytest.approx([part * full_length(page, kind) for part in parts], abs=0.01)


def test_values_stand_beside_their_bars():
    (figure,) = layer_figures(LAYERS)
    assert {"4", "8", "3", "48 of 64", "20.0%"} <= set(Page(figure).texts)


def test_what_has_no_channels_has_no_bars_of_channels():
    (figure,) = layer_figures([LayerBars("rest", 32, 32, 0, 0, 0, 0, 100.0)])
    assert widths(Page(figure), "channels-in") == []


def test_a_long_name_keeps_its_end_and_is_whole_in_its_title():
    name = "encoder.layers.11.attention.output.projection"
    (figure,) = layer_figures([LayerBars(name, 4, 8, 1, 1, 1, 1, 100.0)])
    texts = Page(figure).texts
    assert name in texts
    assert "…attention.output.projection"[-26:] in [text[-26:] for text in texts if text.startswith("…")]


def test_many_layers_are_figures_of_a_page_each_on_one_scale():
    layers = [LayerBars(f"layer{index}", 4, 4, 1, 1, 1, 1, float(index + 1)) for index in range(LAYERS_PER_FIGURE + 1)]
    first, second = map(Page, layer_figures(layers))
    shares = widths(first, "share") + widths(second, "share")
    assert len(widths(second, "share")) == 1
    assert shares == pytest.approx([shares[0] * (index + 1) for index in range(len(layers))], abs=0.2)
    assert "layers 25 to 25 of 25" in second.text
