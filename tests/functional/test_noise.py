"""Noise from a counter: the same numbers everywhere and always, uniform and uncorrelated."""

import pytest
import torch

from bayesbits.functional.noise import counter_uniform


def mixed(h: int) -> int:
    """The hash in Python's own whole numbers."""
    for _ in range(2):
        h = (h ^ h >> 16) * 0x45D9F3B % 2**32
    return h ^ h >> 16


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (3, 7), (2**32 - 1, 2**32 - 1), (2**40 + 5, 123_456), (-1, 2**33)])
def test_the_numbers_are_those_of_the_hash(seed, step):
    key = mixed((mixed(seed % 2**32) + step) % 2**32)
    expected = [((mixed((mixed(index) + key) % 2**32) >> 8) + 0.5) / 2**24 for index in range(50)]
    drawn = counter_uniform(torch.tensor([seed, step]), 50)
    assert drawn.dtype == torch.float32
    assert drawn.tolist() == torch.tensor(expected, dtype=torch.float32).tolist()


def test_counter_noise_is_uniform_and_uncorrelated_over_steps_seeds_and_indices():
    draws = torch.stack([counter_uniform(torch.tensor([seed, step]), 500) for seed in range(8) for step in range(50)])
    assert draws.min() > 0
    assert draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=2e-3)
    assert draws.var().item() == pytest.approx(1 / 12, abs=1e-3)
    counts = torch.histc(draws, 20, 0, 1) / draws.numel()
    assert torch.allclose(counts, torch.full((20,), 0.05), atol=2e-3)
    correlation = torch.corrcoef(draws) - torch.eye(len(draws))
    assert correlation.abs().max() < 0.3  # 5 or 6 standard deviations of 500 independent numbers
    assert abs(torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))[0, 1]) < 0.01


def test_counter_noise_repeats_exactly_and_changes_with_the_step():
    counter = torch.tensor([3, 7])
    assert torch.equal(counter_uniform(counter, 10), counter_uniform(counter.clone(), 10))
    assert not torch.equal(counter_uniform(counter, 10), counter_uniform(torch.tensor([3, 8]), 10))
