"""The page about several runs: every run, every layer, and what is wrong; it loads nothing, and names stay text."""

import pytest

from bayesbits.report import write_comparison_page
from tests.report.parsing import Page
from tests.report.runs import HOSTILE, write_run


def page_of(*folders, path):
    return Page(write_comparison_page(folders, path).read_text(encoding="utf-8"))


def test_it_has_chart_table_and_plans(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name)
    page = page_of(tmp_path / "one", tmp_path / "two", path=tmp_path / "page.html")
    assert "2 runs compared" in page.text
    assert "Accuracy over cost" in page.text
    assert page.text.count("97.50%") == 2
    row = page.texts.index("stem")
    assert page.texts[row : row + 3] == ["stem", "2/8, 6 of 8", "2/8, 6 of 8"]
    assert len(page.scripts) == 1


def test_unfinished_and_damaged_runs_are_said(tmp_path):
    for name in ("one", "two", "three"):
        write_run(tmp_path / name)
    (tmp_path / "two/result.json").unlink()
    (tmp_path / "three/plan.json").write_text("{")
    page = page_of(*(tmp_path / name for name in ("one", "two", "three")), path=tmp_path / "page.html")
    assert "two is not finished." in page.text
    assert "three has a file that cannot be used." in page.text


def test_names_stay_text(tmp_path):
    write_run(tmp_path / "one", first=HOSTILE)
    write_run(tmp_path / "two", first=HOSTILE)
    page = page_of(tmp_path / "one", tmp_path / "two", path=tmp_path / "page.html")
    assert HOSTILE.replace("\u202e", "\N{REPLACEMENT CHARACTER}") in page.texts
    assert len(page.scripts) == 1


def test_a_folder_twice_is_one_run_and_none_is_refused(tmp_path):
    write_run(tmp_path / "one")
    assert "one run" in page_of(tmp_path / "one", tmp_path / "one", path=tmp_path / "page.html").text
    with pytest.raises(ValueError, match="give at least one folder"):
        write_comparison_page([], tmp_path / "page.html")
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        write_comparison_page([tmp_path / "nothing"], tmp_path / "page.html")
