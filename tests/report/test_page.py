"""The page as a reader gets it: whole, self-contained, true to the run, and safe whatever layers are called."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from bayesbits.report import page, write_report
from bayesbits.report.run_data import read_run
from tests.report.parsing import Page
from tests.report.runs import HOSTILE, write_run, write_verification


def page_of(folder):
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_says_what_the_run_came_to(tmp_path):
    result = write_run(tmp_path)
    text = page_of(tmp_path).text
    # BOPs: (4 x 6) x 2 x 8 + (6 x 3) x 4 x 16 + 10 x 1024 of (32 + 24 + 10) x 1024
    assert result.relative_bops == pytest.approx(100 * (384 + 1152 + 10240) / 67584)
    for said in ("97.50%", "98.25%", "-0.75 points", "17.4%", "5.7x fewer bit operations", "67,584", "11,776"):
        assert said in text
    for said in ("digits-lenet5", "lenet5 on digits", "abacus (cpu)", "torch 2.11.0", "61 s", "mu = 0.01, seed 0"):
        assert said in text
    assert "2 of 8 removable channels are removed" in text
    assert "20 of float training, 20 of search, 5 of fine-tuning" in text


def test_every_layer_has_its_row(tmp_path):
    write_run(tmp_path)
    cells = page_of(tmp_path).texts
    row = cells.index("stem", cells.index("weight bits"))
    # 24 weights of 2 bits are 6 bytes, 6 biases 24.
    assert cells[row : row + 9] == ["stem", "2", "8", "4", "6 of 8", "24", "384", "3.3%", "30"]
    row = cells.index("(left in float)", row)
    assert cells[row : row + 7] == ["(left in float)", "32", "32", "10", "10,240", "87.0%", "20"]


def test_what_could_not_be_compressed_is_listed_with_its_reason(tmp_path):
    write_run(tmp_path)
    text = page_of(tmp_path).text
    assert "head\nreaches the network's output\n3" in text
    assert "input\nis a network input\n4" in text
    assert "mix\nattention product\nreaches the network's output\n10" in text


def test_the_page_carries_what_makes_it_again(tmp_path):
    folder = tmp_path / "a run"
    write_run(folder)
    text = page_of(folder).text
    assert f"bayesbits report '{folder}'" in text
    assert "bayesbits search recipe.toml" in text
    assert (folder / "recipe.toml").read_text() in text


def test_a_posttrained_network_is_repeated_within_its_cost(tmp_path):
    write_run(tmp_path)
    run = read_run(tmp_path)
    text = Page(page.render_page(replace(run, result=replace(run.result, method="posttraining")))).text
    assert "the settings in posttrain.json of the folder are given as options" in text
    found = re.search(r"bayesbits posttrain recipe.toml --output again --budget ([\d.]+)$", text, re.MULTILINE)
    assert run.cost.relative_bops < float(found[1]) < 1.01 * run.cost.relative_bops


def test_tables_and_figures_are_accessible(tmp_path):
    write_run(tmp_path)
    page = page_of(tmp_path)
    assert page.all("html", lang="en")
    assert page.all("th")
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    figures = page.all("svg", role="img")
    assert len(figures) == len(page.all("svg")) == 2
    assert all(set(figure["aria-labelledby"].split()) <= set(ids) for figure in figures)


def test_columns_of_numbers_are_aligned_right(tmp_path):
    write_run(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<th scope="col">reason</th><th scope="col" class="number">channels</th>' in text
    assert '<code>input</code></th><td>is a network input</td><td class="number">4</td></tr>' in text
    assert '<th scope="row">MACs</th><td class="number">66</td><td class="number">52</td>' in text
    assert '<th scope="row">Data</th><td>digits</td></tr>' in text


def test_hostile_names_stay_text(tmp_path):
    write_run(tmp_path, first=HOSTILE, reason=HOSTILE)
    page = page_of(tmp_path)  # no script element, or the reader would have refused it
    visible = HOSTILE.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
    assert page.texts.count(visible) >= 4
    assert "\u202e" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_hostile_texts_of_recipe_result_and_verification_stay_text(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, failure=HOSTILE)
    run = read_run(tmp_path)
    recipe = replace(
        run.recipe, name=HOSTILE, description=HOSTILE, source=HOSTILE, data=replace(run.recipe.data, name=HOSTILE)
    )
    result = replace(run.result, advice=HOSTILE, device=HOSTILE, method=HOSTILE, versions={HOSTILE: HOSTILE})
    hostile = replace(run, recipe=recipe, recipe_text=f"</pre>{HOSTILE}", result=result, folder=Path(HOSTILE))
    text = page.render_page(hostile)
    assert "\u202e" not in text
    visible = HOSTILE.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
    # title, heading, lead, advice, failure; recipe (twice), source, data, method, device, versions (twice); command,
    # where quotation marks separate the folder, and recipe file.
    assert Page(text).text.count(visible) == 14


def test_a_network_without_residual_additions_has_no_empty_table(tmp_path):
    write_run(tmp_path)
    assert "Operands of residual additions." not in page_of(tmp_path).texts


def test_every_template_is_part_of_the_package():
    root = Path(page.__file__).parents[3]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bayesbits"]
    packaged = {path for pattern in patterns for path in Path(page.__file__).parents[1].glob(pattern)}
    templates = set((Path(page.__file__).parent / "templates").iterdir())
    assert {path.name for path in templates} == {
        "page.html.jinja", "macros.html.jinja", "style.css", "sweep.html.jinja", "sweep.css",
    }  # fmt: skip
    assert templates <= packaged


def test_a_verification_is_told(tmp_path):
    write_run(tmp_path)
    assert "Not verified" in page_of(tmp_path).text
    write_verification(tmp_path)
    text = page_of(tmp_path).text
    assert "Not verified" not in text
    assert "48 weights, 9 biases and 2 grids, all equal" in text
    assert "3 of 7,654 activation codes differ beside a tie, 0 elsewhere" in text
    assert "stem.input\n7,000\n3\n0" in text
    assert "off by 4.0e-02 of the largest; the largest of 10 differs in 1 of 360" in text
    assert "0 of 4,321 values differ where all have to be equal" in text
    assert "5 of 10 values differ; relative error at most 2.0e-07" in text
    assert "off by 3.0e-02 of the largest; the largest of 10 differs in 2 of 360" in text
    assert "1 of 2 layers" in text
    assert "head\nGemm\nit is wide" in text
    assert "Counting Frame 9000 (avx_vnni)" in text


def test_a_failed_verification_is_told_as_failed_with_its_places(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, failure="head.input: 12 of 654 codes are not those of the simulation", wrong=12)
    text = page_of(tmp_path).text
    assert "The verification failed" in text
    assert "head.input: 12 of 654 codes are not those of the simulation" in text
    assert "head.input\n654\n0\n12" in text


def test_a_run_from_scratch_without_metrics_has_its_page(tmp_path):
    write_run(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    result = (tmp_path / "result.json").read_text()
    (tmp_path / "result.json").write_text(re.sub(r'"float_(accuracy|value)": [\d.]+', r'"float_\1": null', result))
    text = page_of(tmp_path).text
    assert "The run has no metrics." in text
    assert "the search started from scratch" in text
    assert "points" not in text


def test_the_page_says_which_way_the_training_ran(tmp_path):
    write_run(tmp_path)
    text = write_report(tmp_path).read_text()
    assert "Execution of search" in text
    assert "not compiled (it failed: no beads), recorded as a CUDA graph, quantizers by beads" in text
