"""The files of a run: whole or not there, and a folder that is not finished says how to go on."""

import os
from pathlib import Path

import pytest

from bayesbits import recipes
from bayesbits.recipes import run_folder
from bayesbits.training import TrainingError
from bayesbits.training.metrics import MetricsLog
from tests.recipes.made_data import MODULE


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    (tmp_path / "users_folder.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return recipes.load(None, ["search.epochs=1"], model="users_folder:network", data="users_folder:data")


def run(recipe, folder, said=None):
    say = (said if said is not None else []).append
    return recipes.run(recipe, folder, device="cpu", progress=False, resume=True, say=say)


def full_disk_at(name, monkeypatch):
    fsync = os.fsync

    def full(descriptor):
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.parametrize("name", ["result.json", "model.safetensors", "recipe.toml"])
def test_a_full_disk_leaves_no_part_of_a_file_and_the_run_goes_on(recipe, tmp_path, monkeypatch, name):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        full_disk_at(name, patch)
        with pytest.raises(TrainingError, match=rf"{name} could not be written .*No space left"):
            run(recipe, folder)
        assert not (folder / name).exists()
        assert not list(folder.glob("*.partial"))
    assert run(recipe, folder) == recipes.Result.load(folder / "result.json")


@pytest.mark.parametrize("content", [b"", b'{"recipe": "x"', b"[]", b"{}", b"\xff"])
def test_a_damaged_result_is_named_with_the_way_out_and_made_again(recipe, tmp_path, content):
    folder = tmp_path / "run"
    result = run(recipe, folder)
    (folder / "result.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"result.json is not a result, or is damaged.*recipe.toml --resume"):
        recipes.restore(folder, "cpu")
    said: list[str] = []
    again = run(recipe, folder, said)
    assert "is damaged: the run goes on from its checkpoints" in said[0]
    assert (again.accuracy, again.layers) == (result.accuracy, result.layers)
    assert recipes.Result.load(folder / "result.json") == again


def test_a_run_that_is_not_finished_is_told_from_none(recipe, tmp_path):
    assert "holds no finished run: there is no plan.json" in run_folder.unfinished(tmp_path, "plan.json")
    folder = tmp_path / "a run"
    run(recipe, folder)
    (folder / "result.json").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        recipes.restore(folder, "cpu")
    assert "not finished (its last checkpoint is of the stage 'search'" in str(caught.value)
    assert str(caught.value).endswith(f"Go on with: bayesbits search '{folder}/recipe.toml' --resume")


def test_a_phase_that_starts_anew_loses_no_metrics_of_others_on_a_full_disk(tmp_path, monkeypatch):
    path: Path = tmp_path / "metrics.jsonl"
    MetricsLog(path, "float").write("train", {"step": 1})
    before = path.read_bytes()
    full_disk_at("metrics.jsonl", monkeypatch)
    with pytest.raises(TrainingError, match="could not be written"):
        MetricsLog(path, "search")
    assert path.read_bytes() == before
