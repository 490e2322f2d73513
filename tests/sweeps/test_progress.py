"""How far a run is, from what another process has written so far."""

import json

import pytest

from bayesbits import recipes
from bayesbits.sweeps.progress import last_lines, read_progress

RECIPE = recipes.load("digits-lenet5", ["float.epochs=10", "search.epochs=20", "finetune.epochs=10"])


def line(phase, epoch, **values):
    return json.dumps({"phase": phase, "event": "train", "epoch": epoch, "step": 1, **values}) + "\n"


def test_the_last_line_tells(tmp_path):
    assert read_progress(tmp_path, RECIPE) is None
    path = tmp_path / "metrics.jsonl"
    path.write_text(line("float", 5))
    assert (str(read_progress(tmp_path, RECIPE)), read_progress(tmp_path, RECIPE).part) == ("float 5/10", 0.125)
    path.write_text(line("float", 10) * 1000 + line("search", 12, expected_relative_bops=3.5))
    found = read_progress(tmp_path, RECIPE)
    assert (str(found), found.part, found.relative_bops) == ("search 12/20", 22 / 40, 3.5)
    path.write_text(path.read_text() + line("finetune", 10)[:-5])
    assert str(read_progress(tmp_path, RECIPE)) == "search 12/20"  # the last line is not written to its end


@pytest.mark.parametrize(
    "text", ["", "{", "no json\n", "3\n", '{"phase": "other", "epoch": 1}\n', '{"phase": "search"}\n']
)
def test_what_is_no_progress_is_none(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert read_progress(tmp_path, RECIPE) is None


def test_a_recipe_without_float_training_begins_with_the_search(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line("search", 5))
    assert (
        read_progress(tmp_path, recipes.load("cifar10-vgg7", ["search.epochs=10", "finetune.epochs=10"])).part == 0.25
    )


def test_the_last_lines_are_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line("search", epoch) for epoch in range(500)))
    found = last_lines(path)
    assert [one["epoch"] for one in found] == list(range(500 - len(found), 500))
    assert 50 < len(found) < 500
    assert last_lines(tmp_path / "none") == []
