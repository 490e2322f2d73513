"""A folder that is not whole is refused with the name of the file."""

import json
from dataclasses import replace

import pytest

from bayesbits.records.plan import Plan
from bayesbits.report import write_report
from bayesbits.report.reading import read_run
from tests.report.runs import write_run, write_verification


@pytest.mark.parametrize("name", ["result.json", "recipe.toml", "plan.json", "topology.json"])
def test_a_missing_file_is_named(tmp_path, name):
    write_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"there is no {name}"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "name", ["result.json", "recipe.toml", "plan.json", "topology.json", "metrics.jsonl", "verification.json"]
)
@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"\xff\xfe\n", b'{"version": 1}\n', b'{"event": "train"}\n'])
def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path, name, content):
    write_run(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["relative_bops", "epochs", "versions"])
def test_a_result_with_something_else_in_place_of_a_value_is_refused(tmp_path, name):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: "high"}))
    with pytest.raises(ValueError, match=rf"result\.json cannot be used: {name} is 'high'"):
        read_run(tmp_path)


def test_a_result_of_before_there_were_metrics_is_read_by_its_accuracy(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "result.json"
    older = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("metrics", "advice")}
    path.write_text(json.dumps(older))
    (score,) = read_run(tmp_path).result.scores
    assert (score.name, score.value, score.float_value, score.unit) == ("accuracy", 97.5, 98.25, "%")
    path.write_text(json.dumps(older | {"accuracy": "high"}))
    with pytest.raises(ValueError, match=r"result\.json cannot be used: the metric accuracy is 'high'"):
        read_run(tmp_path)


def test_files_of_different_runs_are_told_apart(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "plan.json"
    plan = Plan.load(path)
    replace(plan, bits={**plan.bits, "stem.weight": 4}).save(path)
    with pytest.raises(ValueError, match="they are of different runs"):
        read_run(tmp_path)


def test_a_verification_of_another_network_is_refused(tmp_path):
    write_run(tmp_path)
    write_verification(tmp_path, layers=("stem", "stranger"))
    with pytest.raises(ValueError, match="is about another network: it has a layer 'stranger'"):
        read_run(tmp_path)
