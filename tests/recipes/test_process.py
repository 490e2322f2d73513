"""The device and the rank of a process, and settings that only a GPU has."""

import pytest
import torch

from bayesbits import recipes
from bayesbits.recipes.process import Process, config_for_device, current_process, is_first_process, versions

CPU = torch.device("cpu")


def test_settings_that_only_a_gpu_has_are_left_out_without_one():
    said = []
    wanted = recipes.load("cifar10-vgg7").search
    fitted = config_for_device(wanted, CPU, said.append, "search")
    assert said == ["search: precision, channels_last, compile, cuda_graph ignored, as there is no GPU"]
    assert (fitted.precision, fitted.channels_last, fitted.compile, fitted.cuda_graph) == ("float32", *3 * [False])
    assert fitted.epochs == wanted.epochs
    assert config_for_device(wanted, torch.device("cuda"), said.append, "search") is wanted
    assert config_for_device(fitted, CPU, said.append, "search") is fitted
    assert len(said) == 1


def test_rank_and_world_size_are_those_of_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert current_process("cpu") == Process(CPU, 0, 1)
    assert is_first_process()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    process = current_process("cpu")
    assert process == Process(CPU, 1, 3)
    assert not process.first
    assert not is_first_process()
    assert process.description.startswith("3 x ")
    assert process.description.endswith(" (cpu)")
    assert not Process(CPU).description.startswith("1 x ")


def test_a_device_that_cannot_be_used_is_named():
    for device in ("cuda:99", "abacus"):
        with pytest.raises(ValueError, match=f"the device '{device}' cannot be used: "):
            current_process(device)


def test_versions_are_those_of_the_packages():
    found = versions()
    assert found["torch"] == torch.__version__
    assert {"bayesbits", "python"} < found.keys()
