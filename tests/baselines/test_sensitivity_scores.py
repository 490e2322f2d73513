"""Scores of many settings: means over examples, saved after each batch, and refused for another network."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import sensitivity
from bayesbits.baselines.sensitivity_scores import Measured, Measurement, digest_of
from tests.baselines.networks import calibrated, pairs


def test_a_score_is_the_mean_over_the_examples_of_all_batches():
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).eval()
    model[0].weight.data.fill_(0.9)
    compressor = bb.attach(model, torch.zeros(1, 1), bb.Spec(prune=False, input_bits=32))
    compressor.calibrate([torch.ones(2, 1)])
    compressor.attachment.quantizers["0.weight"].set_range(3.0)
    inputs = [torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0], [4.0]])]
    said: list[str] = []
    measurement = Measurement(
        compressor, inputs, [0.0, 1.0], (lambda y, t: y.mean() + t, lambda y, t: y.max() - t), about="",
        progress=said.append,
    )  # fmt: skip
    # At 2 bits the step is 2 and 0.9 becomes 0; at 32 bits it stays. One example of the first batch, three of the next.
    scores = measurement.scores("alone", [{"0.weight": 32}, {"0.weight": 2}])
    assert scores[0] == pytest.approx(((0.9 * 1 + 3 * (0.9 * 3 + 1)) / 4, (0.9 + 3 * (0.9 * 4 - 1)) / 4))
    assert scores[1] == pytest.approx((3 * 1 / 4, -3 * 1 / 4))
    assert said == [f"each tensor alone: {done} of 2 batches, 2 settings each" for done in (1, 2)]


def test_a_digest_depends_on_values_types_shapes_and_words():
    x = torch.tensor([[1.0, 2.0]])
    others = [x + 1, x.double(), x.reshape(2, 1), x.flip(1)]
    digests = {digest_of([x, {"mask": 3}], "words"), digest_of([x], "other words"), *map(digest_of, others)}
    assert len(digests) == 6
    assert digest_of([x.clone(), {"mask": 4}], "words") in digests  # only tensors and words count
    assert digest_of(torch.zeros(0)) != digest_of(torch.zeros(0, 1))


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = sensitivity(calibrated(), pairs(), widths=(4,))
    file = tmp_path / "measured.json"
    original = Measurement._batch_scores
    runs: list[int] = []

    def stopping(self, number, settings, *, chain):
        if len(runs) == 4:
            raise KeyboardInterrupt
        runs.append(number)
        return original(self, number, settings, chain=chain)

    monkeypatch.setattr(Measurement, "_batch_scores", stopping)
    with pytest.raises(KeyboardInterrupt):
        sensitivity(calibrated(), pairs(), widths=(4,), path=file)
    assert (len(Measured.load(file).alone), len(Measured.load(file).path)) == (3, 1)
    runs.clear()
    lines: list[str] = []
    assert sensitivity(calibrated(), pairs(), widths=(4,), path=file, progress=lines.append) == whole
    assert runs == [1, 2]
    assert lines == [f"one after the other: {done} of 3 batches, 6 settings each" for done in (2, 3)]


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "measured.json"
    sensitivity(calibrated(), pairs(), widths=(4,), path=file)
    with pytest.raises(ValueError, match="holds measurements of another network, other examples or other widths"):
        sensitivity(calibrated(), pairs(), widths=(2,), path=file)
    with pytest.raises(ValueError, match="holds measurements of another"):
        sensitivity(calibrated(), pairs(90), widths=(4,), path=file)
    old = tmp_path / "old.json"
    old.write_text('{"version": 1, "digest": "", "alone": [], "path": []}')
    with pytest.raises(ValueError, match=r"old\.json: Measured version 1 cannot be read.*Delete it"):
        sensitivity(calibrated(), pairs(), widths=(4,), path=old)
    other = calibrated()
    other.attachment.quantizers["head.weight"].set_range(3.0)
    with pytest.raises(ValueError, match="holds measurements of another"):
        sensitivity(other, pairs(), widths=(4,), path=file)
