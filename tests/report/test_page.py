"""The page as a reader gets it: whole, self-contained, true to the run, and safe whatever layers are called."""

import base64
import hashlib
import re
import socket
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from bayesbits.recipes.run_state import RunState, recorded
from bayesbits.records.front import Front
from bayesbits.records.front import Point as FrontPoint
from bayesbits.records.plan import Plan
from bayesbits.records.tensor_statistics import LayerError
from bayesbits.report import page, write_report
from bayesbits.report import page as module
from bayesbits.report.page import breakable, command, with_code
from bayesbits.report.run_data import read_run
from tests.report.parsing import Page
from tests.report.runs import HOSTILE, write_bench, write_run, write_statistics, write_verification


def page_of(folder):
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_says_what_the_run_came_to(tmp_path):
    result = write_run(tmp_path)
    text = page_of(tmp_path).text
    # BOPs: (4 x 6) x 2 x 8 + (6 x 3) x 4 x 16 + 10 x 1024 of (32 + 24 + 10) x 1024
    assert result.relative_bops == pytest.approx(100 * (384 + 1152 + 10240) / 67584)
    for said in ("97.50%", "98.25%", "-0.75 points", "17.4%", "5.7x fewer bit operations", "67.6 k", "11.8 k"):
        assert said in text
    for said in ("digits-lenet5", "lenet5 on digits", "abacus (cpu)", "torch 2.11.0", "61 s", "mu = 0.01, seed 0"):
        assert said in text
    assert "2 of 8 removable channels are removed" in text
    assert "20 of float training, 20 of search, 5 of fine-tuning" in text


def test_every_layer_has_its_row_in_picture_and_table(tmp_path):
    write_run(tmp_path)
    write_statistics(tmp_path)
    page = page_of(tmp_path)
    cells = page.texts
    row = cells.index("stem", cells.index("weight bits"))
    # 24 weights of 2 bits are 6 bytes, 6 biases 24.
    assert cells[row - 1 : row + 9] == ["1", "stem", "2", "8", "4", "6 of 8", "24", "3.3%", "30", "12.5"]
    assert "10 MACs, 87.0% of the bit operations, 20 bytes" in page.text
    row = cells.index("stem", cells.index("input"))
    assert cells[row : row + 6] == ["stem", "linear, 4 to 8", "2 bits", "8 bits", "6 of 8", "3.3%"]
    assert "12.5 dB with this layer alone rounded" in page.text
    assert len(page.all("svg", class_="histogram")) == 4


def test_statistics_gates_and_times_are_shown_where_they_are_known(tmp_path):
    write_run(tmp_path)
    text = page_of(tmp_path).text
    assert "the run kept no statistics" in text
    assert "Not measured: the run kept no statistics" in text
    assert "The largest errors" not in text
    assert "Measured latency" not in text
    write_statistics(tmp_path)
    write_bench(tmp_path)
    page = page_of(tmp_path)
    assert "Which layer loses most" in page.text
    assert "stem\n12.5 dB" in page.text
    assert "the run kept no statistics" not in page.text
    assert "2x faster" in page.text
    assert "head\nGemm\n40 µs\n30 µs" in page.text
    assert [found["aria-label"] for found in page.all("svg", class_="strip")] == [
        "stem.weight: 4 bits until epoch 10, then 2 bits",
        "head.input: 16 bits",
    ]


def test_runs_of_before_gates_were_written_say_so(tmp_path):
    write_run(tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"gates"' not in line))
    assert "an earlier version of bayesbits" in page_of(tmp_path).text


def test_a_method_without_gates_says_so(tmp_path):
    write_run(tmp_path)
    recipe, metrics = tmp_path / "recipe.toml", tmp_path / "metrics.jsonl"
    recipe.write_text(re.sub(r'method = "\w+"', 'method = "lsq"', recipe.read_text()))
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if '"gates"' not in line))
    text = page_of(tmp_path).text
    assert "There are no gates over time: the method lsq has none." in text
    assert "earlier version" not in text


def test_the_only_script_is_that_of_the_package_and_nothing_else_may_run(tmp_path):
    write_run(tmp_path)
    page = page_of(tmp_path)
    (script,) = page.scripts
    assert script == (Path(module.__file__).parent / "templates/script.js").read_text()
    (policy,) = (found["content"] for found in page.all("meta") if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def fail(folder, error):
    """Leave the folder of a run as an error would that ends it in its search."""
    for name in ("result.json", "plan.json"):
        (folder / name).unlink()
    with pytest.raises(type(error)), recorded(folder, "bayesbits search again --resume"):
        raise error


def test_a_run_that_failed_has_a_page_with_the_error_its_place_and_the_command_to_go_on(tmp_path):
    write_run(tmp_path)
    fail(tmp_path, ZeroDivisionError(f"no {HOSTILE}\nat all"))
    page = page_of(tmp_path)
    assert "digits-lenet5: failed" in page.texts
    alert = next(one for one in page.all("div", class_="alert"))
    assert alert is not None
    text = " ".join(page.text.split())
    assert "This run failed at 2" in text
    assert "in fine-tuning, epoch" in text
    assert "ZeroDivisionError: no <script>alert('x')</script>" in text
    assert "test_page.py" in text  # the traceback
    assert "Go on with: bayesbits search again --resume" in text
    assert len(page.all("script")) == 1


def test_an_interrupted_run_has_a_page_that_says_so_and_no_traceback(tmp_path):
    write_run(tmp_path)
    fail(tmp_path, KeyboardInterrupt())
    text = " ".join(page_of(tmp_path).text.split())
    assert "digits-lenet5: not finished" in text
    assert "This run was interrupted at 2" in text
    assert "Where it happened" not in text


def test_a_run_whose_process_was_killed_has_a_page_that_says_so(tmp_path):
    write_run(tmp_path)
    (tmp_path / "result.json").unlink()
    RunState(1, socket.gethostname(), "long ago", "go on", "then").save(tmp_path / "state.json")
    text = " ".join(page_of(tmp_path).text.split())
    assert "digits-lenet5: failed" in text
    assert "process 1 on" in text
    assert "was killed" in text
    assert "bayesbits search" in text


def test_options_of_a_command_are_not_broken():
    assert command("bayesbits search <a> --resume") == (
        'bayesbits search &lt;a&gt; <span class="option">--resume</span>'
    )


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path):
    write_run(tmp_path)
    for name in ("result.json", "plan.json"):
        (tmp_path / name).unlink()
    text = " ".join(page_of(tmp_path).text.split())
    assert "digits-lenet5: not finished" in text
    assert "This run is not finished." in text
    assert "There is no plan yet" in text
    assert f"bayesbits search {tmp_path}/recipe.toml --resume" in text
    assert "Over the run" in text


@pytest.mark.parametrize("name", ["result.json", "plan.json", "topology.json", "recipe.toml", "metrics.jsonl"])
def test_a_damaged_run_has_a_page_that_says_which_file(tmp_path, name):
    write_run(tmp_path)
    (tmp_path / name).write_text("{\n")
    text = page_of(tmp_path).text
    assert "A file of this run cannot be used." in text
    assert name in text


def test_a_sweep_without_a_final_network_shows_its_front(tmp_path):
    write_run(tmp_path)
    for name in ("result.json", "plan.json", "metrics.jsonl"):
        (tmp_path / name).unlink()
    plan = Plan({"stem.weight": 4})
    Front((FrontPoint(plan, 2.0, {}, 90.0, 0.1), FrontPoint(plan, 8.0, {}, 95.0, 0.01))).save(tmp_path / "front.json")
    page = page_of(tmp_path)
    assert "Post-training learned 2 plans" in page.text
    assert "Score over cost" in page.text


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
    text = " ".join(text.split())
    assert "the settings in posttrain.json of the folder are given as options" in text
    found = re.search(r"bayesbits posttrain recipe.toml --output again --budget ([\d.]+) This command", text)
    assert run.cost.relative_bops < float(found[1]) < 1.01 * run.cost.relative_bops


def test_tables_and_figures_are_accessible(tmp_path):
    write_run(tmp_path)
    write_statistics(tmp_path)
    page = page_of(tmp_path)
    assert page.all("html", lang="en")
    assert page.all("th")
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
    regions = list(page.all("div", role="region"))
    assert all(found["aria-label"] and found["tabindex"] == "0" for found in regions)
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for image in page.all("svg", role="img"):
        assert image.get("aria-label") or set(image["aria-labelledby"].split()) <= set(ids)
    for link in page.all("a"):
        assert link["href"].removeprefix("#") in ids
    silent = [found for found in page.all("svg") if found.get("role") != "img" and found.get("class") != "plot"]
    assert all(found["aria-hidden"] == "true" for found in silent)


def test_columns_of_numbers_are_aligned_right(tmp_path):
    write_run(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<th scope="col">reason</th><th scope="col" class="number">channels</th>' in text
    assert '<code>input</code></th><td>is a network input</td><td class="number">4</td></tr>' in text
    assert '<th scope="row">MACs</th><td class="number">66</td><td class="number">52</td>' in text
    assert " 1x" not in text
    assert '<th scope="row">Data</th><td>digits</td></tr>' in text


def test_hostile_names_stay_text(tmp_path):
    write_run(tmp_path, first=HOSTILE, reason=HOSTILE)
    page = page_of(tmp_path)
    assert len(page.scripts) == 1
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
    assert Page(text).text.count(visible) >= 12
    assert Page(text).scripts == Page(page.render_page(run)).scripts


def test_every_template_is_part_of_the_package():
    root = Path(page.__file__).parents[3]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bayesbits"]
    packaged = {path for pattern in patterns for path in Path(page.__file__).parents[1].glob(pattern)}
    templates = set((Path(page.__file__).parent / "templates").iterdir())
    assert {path.name for path in templates} == {
        "base.html.jinja", "comparison.html.jinja", "macros.html.jinja", "run.html.jinja", "script.js", "style.css"
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
    assert "off by at most 4.0e-02 of the largest value; the same prediction in 359 of 360" in text
    assert "0 of 4,321 values differ where all have to be equal" in text
    assert "5 of 10 values differ; relative error at most 2.0e-07" in text
    assert "off by at most 3.0e-02 of the largest value; the same prediction in 358 of 360" in text
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


def test_commands_in_messages_are_code_and_everything_is_escaped():
    assert with_code("run `a <b>` again") == "run <code>a &lt;b&gt;</code> again"
    assert with_code("stopped. Go on with: bayesbits x") == "stopped. Go on with: <code>bayesbits x</code>"
    assert with_code("a ` alone & <i>") == "a ` alone &amp; &lt;i&gt;"


def test_long_names_break_behind_dots_and_underscores():
    long = "a" * 24
    assert breakable(f"{long}.b_c") == f"{long}.<wbr>b_<wbr>c"
    assert breakable(f"{long}<i>.") == f"{long}&lt;i&gt;."
    assert breakable("a.b_c<") == "a.b_c&lt;"


def test_a_run_in_parts_says_what_is_missing_and_shows_what_its_result_has(tmp_path):
    write_run(tmp_path)
    for name in ("topology.json", "recipe.toml"):
        (tmp_path / name).unlink()
    text = page_of(tmp_path).text
    assert "This page is not complete." in text
    assert "recipe.toml and topology.json are not there: copy the whole folder" in text
    assert "Bit operations\n100%" in text
    assert "incomplete" in text


def test_errors_of_the_deployed_network_are_shown_beside_those_of_the_simulation(tmp_path):
    write_run(tmp_path)
    statistics = write_statistics(tmp_path)
    assert "adds the errors of the deployed network" in page_of(tmp_path).text
    deployed = (LayerError("stem", 12.25, 12.25), LayerError("head", 30.5, 10.75))
    replace(statistics, deployed=deployed, deployed_output=10.75).save(tmp_path / "statistics.json")
    text = page_of(tmp_path).text
    assert "The network's output has 11.0 dB, deployed 10.8 dB." in text
    assert "11.0 dB with all up to it. Deployed:\n30.5 dB alone,\n10.8 dB with all up to it." in text


def test_a_failed_verification_is_said_at_the_top(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, failure="head.input: 12 of 654 codes differ", wrong=12)
    text = page_of(tmp_path).text
    assert text.index("The integer network is not equal to the trained one.") < text.index("The network, from input")
