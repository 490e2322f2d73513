"""Metrics: the numbers of their definitions, however examples are batched, and words about them."""

import pytest
import torch
from torch import nn

from bayesbits.recipes.evaluation import measure
from bayesbits.recipes.metrics import Score, class_metrics, number_metrics


class Given(nn.Module):
    """Gives what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x


def measured(outputs, targets, metrics, batches=3):
    return measure(Given(), list(zip(outputs.chunk(batches), targets.chunk(batches), strict=True)), metrics)[0]


def test_mean_iou_is_that_of_the_whole_data_set_and_leaves_out_what_is_to_be_ignored():
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 3, 4, 4), torch.randint(3, (6, 4, 4))
    targets[0, 0] = 255
    found = measured(logits, targets, class_metrics(255)[1:])
    given, counted = logits.argmax(1), targets != 255
    ious = [
        ((given == label) & (targets == label)).sum() / (((given == label) | (targets == label)) & counted).sum()
        for label in range(3)
    ]
    assert found["mean_iou"] == pytest.approx(100 * float(sum(ious)) / 3)
    assert found["pixel_accuracy"] == pytest.approx(100 * float((given == targets)[counted].double().mean()))
    assert found == measured(logits, targets, class_metrics(255)[1:], batches=2)


def test_a_class_that_is_nowhere_has_no_iou():
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 1]]), 5).float().movedim(-1, 1)
    assert measured(logits, torch.tensor([[0, 1]]), class_metrics()[1:2], 1) == {"mean_iou": 100.0}


def test_errors_of_numbers_and_the_part_that_is_explained():
    torch.manual_seed(0)
    targets = torch.randn(10, 2) * torch.tensor([1.0, 100.0])
    outputs = targets + torch.randn(10, 2)
    found = measured(outputs, targets, number_metrics(), batches=4)
    difference = (outputs - targets).double()
    assert found["mse"] == pytest.approx(float(difference.square().mean()))
    assert found["mae"] == pytest.approx(float(difference.abs().mean()))
    spread = (targets.double() - targets.double().mean(0)).square().sum(0)
    assert found["r2"] == pytest.approx(float((1 - difference.square().sum(0) / spread).mean()))


@pytest.mark.parametrize(
    ("score", "change"),
    [
        (Score("accuracy", 99.0, 98.5, "%", True), "+0.50 points, better"),
        (Score("accuracy", 98.501, 98.5, "%", True), "+0.00 points"),
        (Score("MSE", 0.5, 0.4, "", False), "+0.1, worse"),
        (Score("MSE", 0.4, 0.5, "", False), "-0.1, better"),
        (Score("MSE", 0.4, None, "", False), None),
    ],
)
def test_a_change_is_told_with_its_direction(score, change):
    assert score.change == change


def test_a_score_reads_back_to_its_value():
    mse = number_metrics()[0]
    assert mse.score(0.25) == -0.25
    assert mse.score(mse.score(0.25)) == 0.25
    assert (mse.text(0.25), class_metrics()[0].text(12.345)) == ("0.25", "12.35%")
