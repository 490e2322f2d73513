"""The states of all random generators: Python's, NumPy's, torch's on the CPU and on the device, and a loader's own.

A state is a dict of tensors and numbers only, so that a checkpoint can hold it and reading it never runs code.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

State = dict[str, Any]

_MASK = 2**64 - 1


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def mix_seed(*numbers: int) -> int:
    """A seed of 63 bits that depends on all numbers and on their order; the mixing is that of SplitMix64."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def capture(device: torch.device, generators: Sequence[torch.Generator] = ()) -> State:
    """The current states."""
    version, numbers, gauss = random.getstate()
    numpy: Any = np.random.get_state()
    kind, words, position, has_gauss, cached = numpy
    state: State = {
        "python": [version, torch.tensor(numbers), gauss],
        "numpy": [str(kind), torch.from_numpy(words.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "generators": [generator.get_state() for generator in generators],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: State, device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
    """Set the states that `capture` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    kind, words, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    for generator, own in zip(generators, state["generators"], strict=True):
        generator.set_state(own)
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
