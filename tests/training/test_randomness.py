"""The states of all random generators are captured and restored, and survive a checkpoint."""

import io
import random

import numpy as np
import torch

from bayesbits.training import randomness


def draw(generator: torch.Generator) -> list[float]:
    return [
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item(),
        torch.rand((), generator=generator).item(),
    ]  # fmt: skip


def test_every_generator_repeats_what_it_drew_after_a_restore():
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(1)
    randomness.seed_everything(3)
    draw(generator)  # the second number of a pair of normal ones is kept for later
    buffer = io.BytesIO()
    torch.save(randomness.capture(device, [generator]), buffer)
    drawn = draw(generator)
    assert draw(generator) != drawn
    buffer.seek(0)
    randomness.restore(torch.load(buffer, weights_only=True), device, [generator])
    assert draw(generator) == drawn


def test_a_seed_decides_on_all_global_generators():
    firsts = []
    for seed in (3, 3, 4, 2**40):  # NumPy takes seeds of 32 bits
        randomness.seed_everything(seed)
        firsts.append(draw(torch.Generator())[:5])
    assert firsts[0] == firsts[1]
    assert all(one != other for one, other in zip(firsts[0], firsts[2], strict=True))


def test_a_mixed_seed_depends_on_every_number_and_on_their_order():
    seeds = {randomness.mix_seed(*numbers) for numbers in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**32, 0)]}
    assert len(seeds) == 7
    assert all(0 <= seed < 2**63 for seed in seeds)
    # The first output of SplitMix64 with the state 0, without its lowest bit.
    assert randomness.mix_seed(0) == 0xE220A8397B1DCDAF >> 1
