"""The page from the command line: where it is written, what is wrong with a run, and statistics measured again."""

import pytest

from bayesbits.report import figure_files
from tests.cli.invoke import SHORT, bayesbits
from tests.report.runs import write_run


def test_the_page_is_written_where_it_is_wanted(here):
    write_run(here / "run")
    shown = bayesbits("report", "run", "--out", "page.html")
    assert shown.stdout == "report: page.html\n"
    assert (here / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert not (here / "run/report.html").exists()


def test_what_is_wrong_with_a_run_is_said_and_the_page_is_written(here):
    write_run(here / "run")
    (here / "run/result.json").unlink()
    shown = bayesbits("report", "run")
    assert "the page says: run holds a run that is not finished" in shown.stderr
    assert "This run is not finished." in (here / "run/report.html").read_text()


def test_statistics_are_measured_again(here):
    bayesbits("search", "digits-lenet5", *SHORT, "--device", "cpu", "--output", "run")
    path = here / "run/statistics.json"
    first = path.read_text()
    path.unlink()
    bayesbits("report", "run")
    assert "the run kept no statistics" in (here / "run/report.html").read_text()
    bayesbits("report", "run", "--measure")
    assert path.read_text() == first
    assert "Which layer loses most" in (here / "run/report.html").read_text()


def test_figures_are_written_for_each_run(here, monkeypatch):
    write_run(here / "one")
    write_run(here / "two")
    assert "wrote 12 figures to figures" in bayesbits("report", "one", "--figures", "figures").stderr
    names = ["bit-operations", "bits-over-the-search", "gates-head.input", "gates-stem.weight", "loss", "network"]
    found = sorted(path.name for path in (here / "figures").iterdir())
    assert found == [f"{name}.{form}" for name in names for form in ("png", "svg")]
    monkeypatch.setattr(figure_files, "find_spec", lambda name: None)
    assert "only as SVG" in bayesbits("report", "one", "two", "--figures", "both").stderr
    assert sorted(path.name for path in (here / "both/two").iterdir()) == [f"{name}.svg" for name in names]
    assert (here / "both/accuracy-over-cost.svg").exists()


def test_several_runs_are_compared(here):
    write_run(here / "one")
    write_run(here / "two")
    assert bayesbits("report", "one", "two").stdout == "report: comparison.html\n"
    assert "2 runs compared" in (here / "comparison.html").read_text()


def test_a_folder_without_a_run_is_refused(here):
    with pytest.raises(AssertionError, match="holds no finished run"):
        bayesbits("report", "nowhere")
