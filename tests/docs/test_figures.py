"""The figures of runs: which result they show, and what they compute from it."""

from xml.etree import ElementTree

import pytest

from docs import figures
from docs.searches import Search
from tests.docs.kept import layer, result, write


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(str(svg)).iter() if one.tag.endswith("text")]


def rects(svg: str) -> list[tuple[float, float, str]]:
    found = [one for one in ElementTree.fromstring(str(svg)).iter() if one.tag.endswith("rect") and one.get("x")]
    return [(float(one.get("x")), float(one.get("width")), one.get("fill", "")) for one in found]


def test_a_figure_shows_what_has_its_field_and_was_not_for_choosing(tmp_path):
    write(
        tmp_path,
        cifar10_vgg7_distilled_validation_mu1_seed0=result("cifar10-vgg7-distilled", 90.0, history={"a": 1}),
        digits_lenet5_mu1_seed0=result("digits-lenet5", 90.0, history={"a": 1}),
        mnist_lenet5_mu1_seed0=result("mnist-lenet5", 90.0),
        fashion_lenet5_mu1_seed0=result("fashion-lenet5", 90.0, history={"a": 1}),
        fashion_lenet5_mu1_seed1=result("fashion-lenet5", 90.0, seed=1),
    )
    assert figures.chosen("history", tmp_path).name == "fashion-lenet5-mu1"
    assert figures.chosen("history", tmp_path, whole=True).name == "digits-lenet5-mu1"
    assert figures.chosen("other", tmp_path) is None


def test_layers_have_the_means_of_bits_and_of_the_channels_that_are_left():
    two = [
        [layer("first", 2, 8, 4, 16), layer("last", 8, 8, 10, 10)],
        [layer("first", 8, 8, 12, 16), layer("last", 8, 8, 10, 10)],
    ]
    svg = figures.layers(Search("mine", tuple(result("mine", 90.0, layers=layers) for layers in two)))
    assert {"first", "50% left", "100% left", "50.0% of cost", "mine: what was learned, mean of 2 seeds"} <= set(
        texts(svg)
    )
    found = [
        one for one in ElementTree.fromstring(str(svg)).iter() if one.get("fill") == figures.WEIGHTS and one.get("y")
    ]
    heights = [float(one.get("height")) for one in found if float(one.get("width")) > 11]
    assert heights[0] == pytest.approx(heights[1] * 2 / 3, rel=1e-3)  # 4 bits, the mean of 2 and 8, beside 8


def test_gates_are_strips_whose_colors_change_when_they_decide():
    history = {
        "part": [0.25, 0.5, 0.75, 1.0], "relative_bops": [1, 1, 1, 1], "bits": {"a.weight": [8, 8, 2, 2]},
        "kept": {"a": [None, 16, 8, 8]}, "probabilities": {},
    }  # fmt: skip
    svg = figures.gates(Search("mine", (result("mine", 90.0, history=history),)))
    assert {"a.weight", "2 bits", "8 channels"} <= set(texts(svg))
    strip = [(x, width, color) for x, width, color in rects(svg) if color in figures.BITS.values() and width > 20]
    (first, one, wide), (second, other, narrow) = strip
    assert (wide, narrow) == (figures.BITS[8], figures.BITS[2])
    assert first + one == pytest.approx(second, abs=0.02)
    assert one == pytest.approx(other, abs=0.02)  # both half of the search


def test_a_decomposition_has_a_panel_for_every_term_that_can_be_drawn():
    values = [n / 80 - 1 for n in range(161)]
    terms = [
        {"bits": bits, "error": error, "kept": bits < 8, "examples": values}
        for bits, error in ((2, 12.0), (4, 0.5), (8, 0.1))
    ]
    found = {"name": "a.weight", "run": "mine", "bits": 4, "examples": values, "terms": terms}
    assert {"x", "x_2", "eps_4", "eps_8", "12% error left", "closed by its gate"} <= set(
        texts(figures.decomposition(found))
    )
    short = {**found, "examples": values[:9], "terms": [one | {"examples": values[:9]} for one in terms]}
    assert "eps_4" not in texts(figures.decomposition(short))
