"""Reads trained weights from a file into a network.

Published checkpoints come in a few wrappings: a plain state_dict, one kept under the key `state_dict` beside the epoch
and the like, and either of them with the `module.` prefix that data-parallel training leaves on every key. All are
accepted here. Files are read with `weights_only=True`, so that a checkpoint cannot run code.
"""

import os
import pickle

import torch
from torch import Tensor, nn

_PARALLEL_PREFIX = "module."


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
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{os.fspath(path)} is not a checkpoint that can be read safely: {error}") from error
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


def _not_a_state_dict(path: str | os.PathLike[str], held: str) -> ValueError:
    return ValueError(
        f"{os.fspath(path)} holds {held}; expected a state_dict of tensors, plain or under the key 'state_dict'"
    )


def _misfit(path: str | os.PathLike[str], model: nn.Module, difference: str) -> ValueError:
    return ValueError(f"{os.fspath(path)} does not fit {type(model).__name__}: {difference}")
