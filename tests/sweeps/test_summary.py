"""Mean and standard error over seeds, and what distinguishes the rows."""

import json

import pytest

from bayesbits.sweeps.summary import summarize
from tests.sweeps.made_runs import finish_run, made_runs, with_metric


@pytest.fixture
def folders(tmp_path):
    """Two weights of the penalty with two seeds each; accuracy and cost are known for each."""
    found = []
    for run in made_runs("search.mu=0.01,0.1", "seed=3,1"):
        seed, mu = run.recipe.seed, run.recipe.search.mu
        finish_run(tmp_path / run.name, run.recipe, accuracy=90 + seed, relative_bops=mu * 10)
        found.append(tmp_path / run.name)
    return found


def test_runs_that_differ_in_the_seed_alone_are_one_row(folders):
    rows = summarize(folders)
    assert [row.settings for row in rows] == [{"search.mu": 0.01}, {"search.mu": 0.1}]
    row = rows[0]
    assert row.seeds == (1, 3)
    assert row.score.values == (91.0, 93.0)
    assert (row.score.mean, row.score.error) == (92.0, pytest.approx(1.0))
    assert (row.float_score.mean, row.relative_bops.mean, row.weight_bytes.mean) == (98.0, pytest.approx(0.1), 1000)
    assert (row.recipe, row.method, row.data, row.model) == ("digits-lenet5", "bayesian_bits", "digits", "lenet5")
    assert (row.label, row.score_text) == ("mu=0.01", "92.00 ± 1.00%")
    assert [folder.name for folder in row.folders] == ["digits-lenet5-mu=0.01-seed=1", "digits-lenet5-mu=0.01-seed=3"]


def test_given_settings_name_the_rows(folders):
    rows = summarize(folders, {folder: {"spec.preset": folder.name} for folder in folders})
    assert rows[0].settings == {"spec.preset": "digits-lenet5-mu=0.01-seed=3"}


def test_places_and_texts_do_not_distinguish_runs_but_the_network_does(tmp_path):
    texts = ["data.folder=/a,/b", "search.log_steps=1,2", "model.name=lenet5,vgg7", "seed=0"]
    for run in made_runs(*texts):
        finish_run(tmp_path / run.name, run.recipe)
    rows = summarize(sorted(tmp_path.iterdir()))
    assert [(row.settings, len(row.seeds)) for row in rows] == [
        ({"model.name": "lenet5"}, 4),
        ({"model.name": "vgg7"}, 4),
    ]


def test_a_row_as_json_has_every_value(folders):
    written = summarize(folders)[0].to_json()
    assert written["score"] == {"mean": 92.0, "standard_error": pytest.approx(1.0), "values": [91.0, 93.0]}
    assert written["runs"] == ["digits-lenet5-mu=0.01-seed=1", "digits-lenet5-mu=0.01-seed=3"]
    assert (written["metric"], written["unit"], written["seeds"]) == ("accuracy", "%", [1, 3])


def test_other_metrics_and_runs_from_scratch(folders):
    for folder in folders:
        with_metric(folder, name="mse", unit="", value=0.25, float_value=None, higher_is_better=False)
    row = summarize(folders)[0]
    assert (row.metric, row.float_score, row.higher_is_better, row.score_text) == (
        "mse",
        None,
        False,
        "0.2500 ± 0.0000",
    )


def test_a_run_that_is_not_finished_is_named(folders):
    (folders[1] / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"{folders[1].name} holds a run that is not finished"):
        summarize(folders)


def test_the_last_evaluation_on_held_back_examples_is_averaged(folders):
    assert summarize(folders)[0].validation is None
    for number, folder in enumerate(folders):
        lines = [
            {"phase": "search", "event": "evaluate", "epoch": epoch, "validation_accuracy": 90.0 + epoch + number}
            for epoch in (1, 2)
        ]
        lines.append({"phase": "finetune", "event": "train", "epoch": 1, "step": 3})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = summarize(folders)[0]
    assert row.validation.values == (94.0, 92.0)  # of seeds 1 and 3, which were written in another order
    (folders[0] / "metrics.jsonl").unlink()
    assert summarize(folders)[0].validation is None
