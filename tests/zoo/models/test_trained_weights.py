"""Checkpoints load from every wrapping, and a file that does not fit is named with the first key that does not."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bayesbits.zoo import models


def small_model(seed: int) -> nn.Module:
    """The smallest member of the CIFAR family, with batch norm statistics that are not the initial ones."""
    torch.manual_seed(seed)
    model = models.CifarResNet(8)
    model(torch.randn(4, 3, 8, 8))
    return model


def plain(state: dict[str, Tensor]) -> object:
    return state


def under_a_key(state: dict[str, Tensor]) -> object:
    return {"state_dict": state, "best_prec1": 91.73}


def data_parallel(state: dict[str, Tensor]) -> object:
    return {"state_dict": {f"module.{key}": value for key, value in state.items()}}


def data_parallel_without_a_key(state: dict[str, Tensor]) -> object:
    return {f"module.{key}": value for key, value in state.items()}


@pytest.mark.parametrize("wrap", [plain, under_a_key, data_parallel, data_parallel_without_a_key])
def test_a_checkpoint_loads_from_every_wrapping(tmp_path: Path, wrap: Callable[[dict[str, Tensor]], object]) -> None:
    trained, fresh = small_model(0), small_model(1)
    path = tmp_path / "small.th"
    torch.save(wrap(trained.state_dict()), path)
    models.load_checkpoint(fresh, path)
    for key, value in trained.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value), key
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(fresh.eval()(images), trained.eval()(images))


def test_a_checkpoint_from_before_num_batches_tracked_loads(tmp_path: Path) -> None:
    trained, fresh = small_model(0), small_model(1)
    state = trained.state_dict()  # keeps its `_metadata`, which says that num_batches_tracked should be there
    for key in [key for key in state if key.endswith("num_batches_tracked")]:
        del state[key]
    torch.save(state, tmp_path / "old.pth")
    models.load_checkpoint(fresh, tmp_path / "old.pth")
    assert torch.equal(fresh.get_parameter("linear.weight"), trained.get_parameter("linear.weight"))


def test_a_missing_key_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shallow.pth"
    torch.save(models.CifarResNet(8).state_dict(), path)
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(path))} does not fit CifarResNet: 'layer1\.1\.conv1\.weight'"
    ):
        models.load_checkpoint(models.CifarResNet(14), path)


def test_an_unexpected_key_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.pth"
    torch.save(models.CifarResNet(14).state_dict(), path)
    with pytest.raises(ValueError, match=r"deep\.pth .* has no 'layer1\.1\.conv1\.weight'"):
        models.load_checkpoint(models.CifarResNet(8), path)


def test_another_shape_is_named_with_the_file_and_leaves_the_network_alone(tmp_path: Path) -> None:
    path = tmp_path / "hundred.pth"
    torch.save(models.CifarResNet(8, num_classes=100).state_dict(), path)
    model = models.CifarResNet(8)
    before = model.conv1.weight.clone()
    with pytest.raises(ValueError, match=r"hundred\.pth .*'linear\.weight' has shape \(100, 64\), not \(10, 64\)"):
        models.load_checkpoint(model, path)
    assert torch.equal(model.conv1.weight, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state": torch.zeros(2), "epoch": 3}, "an object of type int under 'epoch'"),
        ({0: torch.zeros(2)}, "an object of type Tensor under 0"),
        ([1, 2], "an object of type list"),
    ],
)
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "other.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"other\.pth holds {message}; expected a state_dict"):
        models.load_checkpoint(models.CifarResNet(8), path)


@pytest.mark.parametrize("name", ["noise.pth", "noise.safetensors", "noise.checkpoint"])
@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"hello there", b"PK\x03\x04 broken", b"bayesbits 1 ab\nPK"]
)
def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not a checkpoint.* Expected is a state_dict of this network"):
        models.load_checkpoint(models.CifarResNet(8), path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, name: str, part: float) -> None:
    path = tmp_path / name
    state = models.CifarResNet(8).state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is not a checkpoint"):
        models.load_checkpoint(models.CifarResNet(8), path)


def test_safetensors_are_read(tmp_path: Path) -> None:
    trained, fresh = small_model(0), small_model(1)
    save_file(trained.state_dict(), tmp_path / "trained.safetensors")
    models.load_checkpoint(fresh, tmp_path / "trained.safetensors")
    assert torch.equal(fresh.get_parameter("linear.weight"), trained.get_parameter("linear.weight"))


def test_a_file_that_is_not_there_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pth is not there; give the file with a state_dict"):
        models.load_checkpoint(models.CifarResNet(8), tmp_path / "none.pth")
    with pytest.raises(FileNotFoundError, match=r"is a folder; give the file"):
        models.load_checkpoint(models.CifarResNet(8), tmp_path)


class Opens:
    """What a pickle can do to its reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole_module.pth"
    for content in (nn.Linear(2, 2), Opens(tmp_path / "ran")):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"whole_module\.pth is not .* save model\.state_dict\(\)") as refused:
            models.load_checkpoint(models.CifarResNet(8), path)
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
