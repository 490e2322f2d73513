"""Checkpoints: what is damaged, foreign or of another training is refused by name, and a full disk costs nothing."""

import dataclasses
import errno
import os
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesbits as bb
from bayesbits.training import CheckpointError
from bayesbits.training.checkpoint import first_difference, read_checkpoint, write_checkpoint
from tests.training.problems import Network, compressor, config, data, loaders


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    bb.search(compressor(), loaders()["device"], F.cross_entropy, config(epochs=1), folder=folder, progress=False)
    return (folder / "search.checkpoint").read_bytes()


def go_on(folder, content, handle=None, loader=None, **changes):
    folder.mkdir(exist_ok=True)
    path = folder / "search.checkpoint"
    path.write_bytes(content)
    handle = compressor() if handle is None else handle
    before = str(handle.model.state_dict())
    try:
        bb.search(
            handle, loader or loaders()["device"], F.cross_entropy, config(**{"epochs": 1} | changes),
            folder=folder, resume=True, progress=False,
        )  # fmt: skip
    finally:
        assert path.read_bytes() == content
        assert str(handle.model.state_dict()) == before


def test_damage_anywhere_is_found(finished, tmp_path):
    middle = len(finished) // 2
    damaged = [
        (b"", "not a checkpoint of bayesbits"),
        (finished[:20], "not a checkpoint of bayesbits"),
        (finished[:middle], "damaged"),
        (finished[:-1], "damaged"),
        (finished[:middle] + bytes([finished[middle] ^ 1]) + finished[middle + 1 :], "damaged"),
        (pickle.dumps({"model": 1}), "not a checkpoint of bayesbits"),
        (finished.replace(b"checkpoint 2 ", b"checkpoint 3 ", 1), "of version 3, and this library reads version 2"),
    ]
    for content, message in damaged:
        with pytest.raises(CheckpointError, match=rf"search\.checkpoint.*{message}"):
            go_on(tmp_path, content)


def test_a_checkpoint_of_the_version_before_is_refused_with_what_to_do(finished, tmp_path):
    before = finished.replace(b"checkpoint 2 ", b"checkpoint 1 ", 1)
    message = r"version 1 \(its learning rates are called 'rate' .* resume with the version .* start again in another"
    with pytest.raises(CheckpointError, match=rf"search\.checkpoint is a checkpoint of {message} folder"):
        go_on(tmp_path, before)


class Code:
    def __reduce__(self):
        return os._exit, (7,)


def test_reading_never_runs_code(tmp_path):
    path = tmp_path / "search.checkpoint"
    write_checkpoint(path, {"model": Code()})
    with pytest.raises(CheckpointError, match=r"search\.checkpoint holds objects that cannot be read without running"):
        read_checkpoint(path)


class Wider(Network):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"mu": 0.5}, r"config\.mu is 0\.01 in the checkpoint and 0\.5 here"),
        ({"epochs": 2}, r"config\.epochs is 1 in the checkpoint and 2 here"),
        ({"gates": {"lr": 0.1}}, r"config\.gates\.lr is 0\.2 in the checkpoint and 0\.1 here"),
        ({"handle": lambda: compressor(bb.Spec(bits=(2, 4, 8)))}, r"spec\.bits is \[2, 4, 8, 16, 32\] in the check"),
        ({"handle": lambda: compressor(make=Wider)}, r"topology\.layers\[2\]\.weight_shape\[0\] is 3 in the check"),
        ({"loader": bb.DeviceLoader(data(), 22)}, "batches in an epoch is 4 in the checkpoint and 2 here"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_with_the_first_difference(finished, tmp_path, difference, message):
    handle = difference.pop("handle", compressor)()
    with pytest.raises(CheckpointError, match=rf"search\.checkpoint was written by another training: {message}"):
        go_on(tmp_path, finished, handle, **difference)


def test_a_network_with_the_same_layers_and_other_tensors_is_refused(finished, tmp_path):
    class Scaled(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

    with pytest.raises(CheckpointError, match="'scale' is only in the network"):
        go_on(tmp_path, finished, compressor(make=Scaled))


def test_how_a_run_is_watched_may_change(finished, tmp_path):
    path = tmp_path / "search.checkpoint"
    path.write_bytes(finished)
    watched = config(epochs=1, checkpoint_seconds=5.0, log_steps=7, evaluate_epochs=2)
    bb.search(compressor(), loaders()["device"], F.cross_entropy, watched, folder=tmp_path, resume=True, progress=False)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_last_checkpoint_and_is_reported(function, tmp_path, monkeypatch):
    path, calls, real = tmp_path / "search.checkpoint", [], getattr(os, function)

    def full(*arguments):
        calls.append(arguments)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, function, full)
    with pytest.raises(bb.TrainingError, match=r"No space left on device.* intact.*resume=True"):
        bb.search(compressor(), loaders()["device"], F.cross_entropy, config(), folder=tmp_path, progress=False)
    monkeypatch.undo()
    assert 0 < read_checkpoint(path)["position"]["step"] < 12
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["metrics.jsonl", "search.checkpoint"]
    bb.search(
        compressor(),
        loaders()["device"],
        F.cross_entropy,
        config(),
        folder=tmp_path,
        resume=True,
        progress=False,
    )


def test_a_checkpoint_holds_all_that_there_is(finished, tmp_path):
    path = tmp_path / "search.checkpoint"
    path.write_bytes(finished)
    content = read_checkpoint(path)
    assert content["model"].keys() == compressor().model.state_dict().keys()
    assert content["optimizers"].keys() == {"weights", "gates", "ranges"}
    assert content["position"]["step"] == 4
    assert content["versions"]["torch"] == torch.__version__
    assert content["description"]["config"]["gates"] == dataclasses.asdict(bb.OptimizerConfig(lr=0.2)) | {
        "milestones": []
    }


def test_a_network_whose_state_cannot_be_read_back_is_found_before_any_work(tmp_path):
    class Odd(Network):
        def get_extra_state(self):
            return Code()

        def set_extra_state(self, state):
            raise AssertionError

    with pytest.raises(CheckpointError, match="cannot be read without running code"):
        bb.search(
            compressor(make=Odd), loaders()["device"], lambda *_: pytest.fail("a step ran"), config(),
            folder=tmp_path, progress=False,
        )  # fmt: skip


def test_differences_are_named_by_their_place():
    one = {"a": [1, {"b": 2}], "c": None}
    assert first_difference(one, {"a": [1, {"b": 2}], "c": None}) is None
    assert first_difference(one, {"a": [1, {"b": 3}], "c": None}) == "a[1].b is 2 in the checkpoint and 3 here"
    assert first_difference(one, {"a": [1, {"b": 2}]}) == "c is only in the checkpoint"
    assert first_difference(one, one | {"d": 1}) == "d is only in this training"
    assert first_difference(one, {"a": [1], "c": None}) == "a is [1, {'b': 2}] in the checkpoint and [1] here"
