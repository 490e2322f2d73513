"""What is in the folder of a sweep: runs are found by their recipes, and what is left to do is known."""

from dataclasses import replace

from bayesbits import recipes
from bayesbits.recipes.run_folder import prepare
from bayesbits.sweeps.entries import State, find_entries, finished_result, other_folders
from tests.sweeps.made_runs import finish_run, made_runs


def test_a_new_sweep_waits(tmp_path):
    entries = find_entries(made_runs("seed=0,1"), tmp_path / "none", {})
    assert [entry.folder for entry in entries] == [
        tmp_path / "none" / "digits-lenet5-seed=0",
        tmp_path / "none" / "digits-lenet5-seed=1",
    ]
    assert [(entry.state, entry.found) for entry in entries] == [(State.WAITING, "")] * 2


def test_runs_are_found_by_their_recipes_when_a_sweep_is_extended(tmp_path):
    """With one value the weight of the penalty is not in the name of the folder; it is found all the same."""
    (run,) = made_runs("search.mu=0.1")
    finish_run(tmp_path / run.name, run.recipe)
    entries = find_entries(made_runs("search.mu=0.01,0.1", "seed=0,1"), tmp_path, {})
    assert [entry.state is State.DONE for entry in entries] == [False, True, False, False]
    assert entries[1].folder == tmp_path / "digits-lenet5-seed=0"
    assert entries[1].result is not None
    assert entries[1].result.accuracy == 97.0
    assert other_folders(entries, tmp_path) == []
    assert other_folders(entries[:1], tmp_path) == [tmp_path / "digits-lenet5-seed=0"]


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    first, other = made_runs("search.mu=0.1")[0], made_runs("search.mu=0.2")[0]
    assert first.name == other.name
    finish_run(tmp_path / first.name, first.recipe)
    (entry,) = find_entries([other], tmp_path, {})
    assert entry.folder == tmp_path / f"{other.name}-2"
    assert entry.state is State.WAITING


def test_a_folder_with_a_recipe_that_cannot_be_read_is_left_alone(tmp_path):
    (run,) = made_runs()
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "recipe.toml").write_text("[search]\nrate = 3\n")
    (entry,) = find_entries([run], tmp_path, {})
    assert entry.folder == tmp_path / f"{run.name}-2"


def test_settings_that_change_nothing_may_differ_and_equal_ones_come_first(tmp_path):
    (plain,) = made_runs("search.log_steps=7")
    finish_run(tmp_path / "plain", plain.recipe)
    moved, equal = made_runs("search.log_steps=8,7")
    entries = find_entries([moved, equal], tmp_path, {})
    assert [entry.state for entry in entries] == [State.WAITING, State.DONE]
    (alone,) = find_entries([moved], tmp_path, {})
    assert alone.state is State.DONE


def test_what_was_begun_is_told_apart(tmp_path):
    runs = made_runs("seed=0,1,2")
    for run in runs:
        (tmp_path / run.name).mkdir()
        prepare(tmp_path / run.name, run.recipe)
    for stage in ("float", "search"):
        (tmp_path / runs[0].name / f"{stage}.checkpoint").write_text("")
    entries = find_entries(runs, tmp_path, {runs[1].name: "failed", runs[0].name: "running"})
    assert [entry.found for entry in entries] == [
        "was interrupted: goes on from its checkpoint of 'search'",
        "failed before: starts again, as it has no checkpoint",
        "was interrupted: starts again, as it has no checkpoint",
    ]


def test_a_run_is_done_with_its_result_and_its_report(tmp_path):
    (run,) = made_runs()
    finish_run(tmp_path, run.recipe)
    assert finished_result(tmp_path) == recipes.Result.load(tmp_path / "result.json")
    (tmp_path / "report.html").unlink()
    assert finished_result(tmp_path) is None
    (tmp_path / "report.html").write_text("")
    (tmp_path / "result.json").write_text("{")
    assert finished_result(tmp_path) is None
    (tmp_path / "result.json").unlink()
    assert finished_result(tmp_path) is None


def test_an_entry_knows_its_log(tmp_path):
    (run,) = made_runs()
    (entry,) = find_entries([replace(run, name="x")], tmp_path, {})
    assert entry.log == tmp_path / "x" / "log.txt"
