"""Figures as files: SVG images that stand alone, and PNG images of the same."""

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from PIL import Image

from bayesbits.report import figure_files
from bayesbits.report.chart import Chart, Series
from bayesbits.report.figure_files import chart_image, strips_image, write_comparison_figures, write_figures
from bayesbits.report.gate_figures import gate_strips
from bayesbits.report.run_data import read_run
from bayesbits.report.training_curves import GatePoint
from tests.report.made_runs import LONG, network, write_made_run
from tests.report.runs import HOSTILE, write_run, write_statistics

SVG = "{http://www.w3.org/2000/svg}"


def test_every_figure_is_an_image_in_both_forms(tmp_path):
    write_run(tmp_path / "run")
    write_statistics(tmp_path / "run")
    paths = write_figures(read_run(tmp_path / "run"), tmp_path / "figures")
    names = {path.name for path in paths}
    assert {"loss.svg", "bit-operations.png", "histogram-stem.weight.svg", "histogram-head.input.png"} <= names
    assert {"network.svg", "bits-over-the-search.png", "gates-stem.weight.svg"} <= names
    for path in paths:
        assert path.parent == tmp_path / "figures"
        if path.suffix == ".svg":
            root = ElementTree.fromstring(path.read_text())
            size = [float(root.get(name)) for name in ("width", "height")]
            image = Image.open(io.BytesIO(path.with_suffix(".png").read_bytes()))
            assert image.size == pytest.approx([3 * one for one in size], abs=1)
            assert len(image.convert("RGB").getcolors(1 << 24)) > 5  # something is drawn


def test_the_strips_of_all_tensors_are_one_image_with_their_names_and_bits():
    points = [GatePoint(float(place), {"a.weight": bits, "b": 8}, {}, {}) for place, bits in ((1, 8), (2, 4))]
    root = ElementTree.fromstring(strips_image(gate_strips(points)))
    texts = [found.text for found in root.iter(f"{SVG}text")]
    assert texts == ["Bits of every tensor over the search", "a.weight", "4 bits", "b", "8 bits"]
    assert [found.get("class") for found in root.iter(f"{SVG}rect")][1:] == ["b8", "b4", "b8"]


def test_runs_that_are_compared_have_their_chart(tmp_path):
    for seed in (0, 1):
        write_made_run(tmp_path / str(seed), network("lenet5"), seed=seed)
    runs = [read_run(tmp_path / str(seed)) for seed in (0, 1)]
    names = {path.name for path in write_comparison_figures(runs, tmp_path / "figures")}
    assert names == {"accuracy-over-cost.svg", "accuracy-over-cost.png"}
    assert write_comparison_figures([replace(runs[0], result=None)], tmp_path / "figures") == []


def test_title_and_legend_are_in_the_image():
    chart = Chart("Cost", "epochs", [Series("counted", [(0.0, 4.0), (1.0, 2.0)])], unit="%", limit=("budget", 1.0))
    texts = [found.text for found in ElementTree.fromstring(chart_image(chart)).iter(f"{SVG}text")]
    assert texts[:3] == ["Cost", "counted 2%", "budget 1%"]


def test_without_the_extra_there_are_no_png_images(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_files, "find_spec", lambda name: None)
    write_made_run(tmp_path / "run", network(LONG))
    paths = write_figures(read_run(tmp_path / "run"), tmp_path / "figures")
    assert {path.suffix for path in paths} == {".svg"}
    assert "network.svg" in {path.name for path in paths}
    assert len([path for path in paths if path.name.startswith("histogram-")]) == 300


def test_names_of_layers_are_no_paths(tmp_path):
    write_run(tmp_path / "run", first=f"../{HOSTILE}")
    write_statistics(tmp_path / "run", first=f"../{HOSTILE}")
    for path in write_figures(read_run(tmp_path / "run"), tmp_path / "figures"):
        assert path.parent == tmp_path / "figures"
        assert "<script" not in path.name
        assert path.suffix == ".png" or "<script" not in path.read_text()
