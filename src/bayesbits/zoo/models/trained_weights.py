"""Reads trained weights from a file into a network.

Published checkpoints come in several forms: a plain state_dict, a state_dict under the key `state_dict` beside other
values such as the epoch, and either of them with the prefix `module.` that data-parallel training adds to every key.
All are accepted here, and state_dicts in safetensors. Files are read with `weights_only=True`, so that a checkpoint
cannot run code.
"""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor, nn

_PARALLEL_PREFIX = "module."
_WANTED = "a state_dict of this network, saved by torch.save(model.state_dict(), FILE) or as .safetensors"


def load_checkpoint(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load the weights in `path` into `model`; every key must fit, or a ValueError names the first that does not.

    Only batch norm's `num_batches_tracked` may be absent, since files from before PyTorch 0.4.1 lack it. After a
    ValueError about a missing or an unexpected key the keys that did fit have been loaded.
    """
    state = _read_state_dict(path)
    for key, own in model.state_dict().items():
        if key in state and state[key].shape != own.shape:
            raise _misfit(path, model, f"{key!r} has shape {tuple(state[key].shape)}, not {tuple(own.shape)}")
    difference = model.load_state_dict(state, strict=False)
    if difference.missing_keys:
        raise _misfit(path, model, f"{difference.missing_keys[0]!r} is missing from the file")
    if difference.unexpected_keys:
        raise _misfit(path, model, f"the network has no {difference.unexpected_keys[0]!r}")


def _read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    content = _read(Path(path))
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise _not_a_state_dict(path, f"an object of type {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise _not_a_state_dict(path, f"an object of type {type(value).__name__} under {key!r}")
    if all(key.startswith(_PARALLEL_PREFIX) for key in content):
        return {key.removeprefix(_PARALLEL_PREFIX): value for key, value in content.items()}
    # A plain dict drops the `_metadata` of the file; without it batch norm fills in a missing num_batches_tracked.
    return dict(content)


def _read(path: Path) -> Any:
    """The content of a file; every way in which a file can fail to be a checkpoint ends in one kind of error."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is not there"
        raise FileNotFoundError(f"the checkpoint {path} {found}; give the file with {_WANTED}")
    try:
        if path.suffix == ".safetensors":
            return tensors_from_bytes(path.read_bytes())
        with warnings.catch_warnings(action="ignore"):  # about pickles that are refused in the end
            return torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except SafetensorError as error:
        raise _unreadable(path, f"it is damaged or no safetensors file ({error})") from error
    except Exception as error:  # torch raises many kinds of errors on other bytes
        if isinstance(error, pickle.UnpicklingError) and "Unsupported " in str(error):
            reason = "it holds Python objects, such as a whole model, and reading those could run any code"
            raise _unreadable(path, f"{reason}; where it was made, save model.state_dict() instead") from error
        raise _unreadable(path, "it is truncated, damaged or of another format") from error


def _unreadable(path: Path, reason: str) -> ValueError:
    own = ""
    if path.suffix == ".checkpoint":
        own = ". A file .checkpoint of bayesbits is for resuming its run; float.safetensors beside it holds weights"
    return ValueError(f"{path} is not a checkpoint that can be read safely: {reason}. Expected is {_WANTED}{own}")


def _not_a_state_dict(path: str | os.PathLike[str], held: str) -> ValueError:
    return ValueError(
        f"{os.fspath(path)} holds {held}; expected a state_dict of tensors, plain or under the key 'state_dict'"
    )


def _misfit(path: str | os.PathLike[str], model: nn.Module, difference: str) -> ValueError:
    return ValueError(f"{os.fspath(path)} does not fit {type(model).__name__}: {difference}")
