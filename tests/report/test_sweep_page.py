"""The page about a sweep: whole, self-contained, and true to the runs."""

from dataclasses import replace

import pytest

from bayesbits.report import write_sweep_page
from bayesbits.report.sweep_page import render_sweep_page
from bayesbits.sweeps.estimate import Estimate
from bayesbits.sweeps.summary import summarize
from tests.report.parsing import Page
from tests.sweeps.made_runs import finish_run, made_runs, with_metric


@pytest.fixture
def folders(tmp_path):
    for run in made_runs("search.mu=0.01,0.1", "seed=0,1"):
        accuracy = 95 + run.recipe.seed + 10 * run.recipe.search.mu
        finish_run(tmp_path / run.name, run.recipe, accuracy, relative_bops=1 / run.recipe.search.mu / 10)
    return sorted(path.parent for path in tmp_path.glob("*/result.json"))


def test_the_page_has_means_with_errors_and_every_run(folders, tmp_path):
    path = write_sweep_page([str(folder) for folder in folders], tmp_path / "sweep.html")
    assert path == tmp_path / "sweep.html"
    page = Page(path.read_text(encoding="utf-8"))
    for said in ("digits-lenet5: 4 runs", "4 runs of 2 settings", "lenet5 on digits: accuracy and bit operations"):
        assert said in page.text
    row = page.texts.index("mu=0.01", page.texts.index("settings"))
    assert page.texts[row - 1 : row + 7] == [
        "bayesian_bits", "mu=0.01", "95.60 ± 0.50%", "98.00 ± 0.00%", "10.0 ± 0.0%", "1 kB",
        "60 s", "2",
    ]  # fmt: skip
    for folder in folders:
        assert folder.name in page.texts
    assert len(page.all("svg", role="img")) == 1
    assert len(page.all("caption")) == len(page.all("table")) == 2


def test_a_validation_has_its_column(folders):
    rows = [replace(row, validation=Estimate.of([90.0, 91.0])) for row in summarize(folders)]
    text = Page(render_sweep_page(rows)).text
    assert "95.60 ± 0.50%\n90.50 ± 0.50%\n98.00 ± 0.00%" in text
    assert "were held back from training" in text
    assert "chosen on the test set" not in text
    assert "chosen on the test set" in Page(render_sweep_page(summarize(folders))).text


def test_the_recipe_has_a_column_where_there_are_several(folders):
    rows = summarize(folders)
    assert "recipe" not in Page(render_sweep_page(rows)).texts
    texts = Page(render_sweep_page([rows[0], replace(rows[1], recipe="other")])).texts
    place = texts.index("other", texts.index("recipe"))
    assert texts[place : place + 3] == ["other", "bayesian_bits", "mu=0.1"]


def test_a_figure_for_each_metric(folders):
    for folder in folders[:2]:
        with_metric(folder, name="mean IoU")
    page = Page(render_sweep_page(summarize(folders)))
    assert "mean IoU 95.60 ± 0.50%" in page.texts
    assert "accuracy 96.50 ± 0.50%" in page.texts
    assert len(page.all("svg")) == 2
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))


def test_hostile_names_stay_text(folders, tmp_path):
    (folders[0] / "recipe.toml").write_text(
        (folders[0] / "recipe.toml").read_text().replace('name = "lenet5"', 'name = "<script>alert(1)</script>:f"')
    )
    page = Page(write_sweep_page(folders, tmp_path / "x.html").read_text())  # no script element, or it would be refused
    assert "<script>alert(1)</script>" in page.text


def test_without_runs_there_is_no_page(tmp_path):
    with pytest.raises(ValueError, match="no finished run"):
        write_sweep_page([], tmp_path / "x.html")
