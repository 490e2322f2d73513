"""The ratio of a signal to its noise: over all that was compared, None where there is none."""

import pytest
import torch

from bayesbits.compression.signal_to_noise import SignalToNoise, decibel, sample, sample_of


def test_a_tenth_of_the_amplitude_is_20_decibel():
    ratio = SignalToNoise()
    ratio.compare(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]]))
    assert ratio.decibel == pytest.approx(20.0)
    ratio.compare(torch.tensor([[0.0, 5.0]]), torch.tensor([[0.0, 5.0]]))  # twice the signal, the same noise
    assert ratio.decibel == pytest.approx(23.010)


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.0), (0.0, 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_without_noise_or_signal_there_is_no_ratio(signal, noise):
    assert decibel(signal, noise) is None


def test_outputs_of_different_shapes_are_left_out():
    ratio = SignalToNoise()
    ratio.compare(torch.ones(1, 2), torch.zeros(1, 3))
    assert ratio.decibel is None


def test_samples_are_bounded_and_take_the_first_numbers_of_an_output():
    assert sample(torch.ones(4, 2**14)).numel() <= 2**15
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(sample_of({"ids": torch.ones(2, dtype=torch.int64), "logits": x}), x.reshape(1, -1))
    assert sample_of([]).numel() == 0
