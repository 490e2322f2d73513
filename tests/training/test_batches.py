"""Loaders of every kind are read as batches, and something that is no loader is refused by name."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.training import LoaderError
from bayesbits.training.batches import Batches
from tests.training.problems import Network, Stream, compressor, data, searched, training_lines


def test_lists_and_several_inputs_by_name_or_position():
    class Pair(Network):
        def forward(self, x, scale):
            return super().forward(x) * scale

    entry = data()
    for inputs in ((entry.images, torch.ones(1)), {"x": entry.images, "scale": torch.ones(1)}):
        torch.manual_seed(0)
        handle = bb.attach(Pair(), inputs)
        searched(handle, [(inputs, entry.labels)] * 2, epochs=1)
        assert handle.attachment.calibrated


def test_a_loader_without_a_length_learns_it_in_its_first_epoch(tmp_path):
    searched(None, Stream(4), log_steps=1, weights={"lr": 1.0, "schedule": "linear"}, epochs=3,
             options={"folder": tmp_path})  # fmt: skip
    rates = [line["lr"]["weights"] for line in training_lines(tmp_path)]
    assert rates == pytest.approx([1.0] * 9 + [0.75, 0.5, 0.25])


def test_an_endless_loader_has_epochs_of_the_given_length(tmp_path):
    searched(None, Stream(None), epoch_steps=3, epochs=2, log_steps=1, options={"folder": tmp_path})
    lines = training_lines(tmp_path)
    assert [(line["epoch"], line["step"]) for line in lines] == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]


def test_samplers_are_told_the_epoch():
    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    epochs = []
    entry = data()
    tensors = TensorDataset(entry.images, entry.labels)
    searched(None, DataLoader(tensors, 11, sampler=Sampler(tensors)), epochs=3)
    assert epochs == [0, 0, 1, 2]  # calibration looks at the first epoch


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ((pair for pair in [(data().images, data().labels)]), "is an iterator"),
        (5, "cannot be iterated"),
    ],
)
def test_what_cannot_be_gone_through_again_is_refused(loader, message):
    with pytest.raises(TypeError, match=message):
        searched(None, loader)


def test_what_is_not_a_pair_is_named():
    handle = compressor()
    handle.calibrate([data().images])
    with pytest.raises(LoaderError, match=r"epoch 0, batch 0: a batch is a pair .* a list of 3"):
        searched(handle, [[data().images, data().labels, data().labels]])
    with pytest.raises(LoaderError, match="no batches in epoch 0"):
        searched(handle, [])


def test_batches_are_skipped_and_epochs_end_where_they_are_told_to():
    loader = [(torch.tensor([number]), torch.tensor([10 * number])) for number in range(5)]
    batches = Batches(loader, torch.device("cpu"), epoch_steps=4)
    assert batches.length == 4
    assert [inputs.item() for inputs, _ in batches.start(0)] == [0, 1, 2, 3]
    assert [(inputs.item(), targets.item()) for inputs, targets in batches.start(0, skip=2)] == [(2, 20), (3, 30)]
    assert Batches(Stream(), torch.device("cpu")).length is None


def test_generators_of_a_loader_are_found_once():
    generator = torch.Generator()
    loader = DataLoader(TensorDataset(torch.zeros(4)), 2, shuffle=True, generator=generator)
    assert Batches(loader, torch.device("cpu")).generators == [generator]
