"""`sweep.json` has every run with its state, and the summary of those that are done."""

import json

from bayesbits.sweeps.entries import State, find_entries
from bayesbits.sweeps.record import earlier_states, rows_of, write_record
from tests.sweeps.made_runs import finish_run, made_runs


def test_the_record_has_all_runs_and_the_rows_of_those_that_are_done(tmp_path):
    runs = made_runs("search.mu=0.01,0.1", "seed=0,1")
    for run in (runs[0], runs[2]):  # both seeds of the first setting
        finish_run(tmp_path / run.name, run.recipe, accuracy=96.0 + run.recipe.seed)
    entries = find_entries(runs, tmp_path, {})
    entries[1].state, entries[1].reason = State.FAILED, "no luck"
    path = write_record(tmp_path, entries, "bayesbits sweep x")
    assert path == tmp_path / "sweep.json"
    content = json.loads(path.read_text())
    assert (content["version"], content["command"]) == (1, "bayesbits sweep x")
    assert [run["state"] for run in content["runs"]] == ["done", "failed", "done", "waiting"]
    assert content["runs"][1] == {
        "name": runs[1].name, "recipe": "digits-lenet5", "settings": {"search.mu": 0.1}, "seed": 0, "state": "failed",
        "reason": "no luck",
    }  # fmt: skip
    (row,) = content["rows"]
    assert row["settings"] == {"search.mu": 0.01}  # although no other setting is done
    assert (row["score"]["mean"], row["score"]["standard_error"], row["seeds"]) == (96.5, 0.5, [0, 1])
    assert [found.label for found in rows_of(entries)] == ["mu=0.01"]
    assert earlier_states(tmp_path)[runs[1].name] == "failed"


def test_a_record_that_is_missing_or_damaged_says_nothing(tmp_path):
    assert earlier_states(tmp_path) == {}
    for text in ("{", "[]", '{"runs": 3}', '{"runs": [{"name": "x"}]}'):
        (tmp_path / "sweep.json").write_text(text)
        assert earlier_states(tmp_path) == {}
