"""A network evaluated on data: in full precision, with settings restored, and with errors that name the problem."""

import pytest
import torch
from torch import nn

from bayesbits.recipes.evaluation import accuracy, explained, measure_by_class
from bayesbits.recipes.metrics import class_metrics, number_metrics


def precisions() -> list[object]:
    """By torch's newer names and by its older ones, which it refuses to read where the two disagree."""
    backends = torch.backends
    newer = [setting.fp32_precision for setting in (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)]
    older = [backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()]
    return newer + older


class Recording(nn.Module):
    """Gives the images as logits, and looks at the precision that holds meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))
        self.seen: list[object] = []

    def forward(self, x):
        self.seen += precisions()
        return x


def test_the_accuracy_of_each_class_is_that_of_its_examples_over_all_batches():
    network = torch.nn.Identity()
    network.register_parameter("device", torch.nn.Parameter(torch.zeros(1)))
    logits = torch.eye(4)[[0, 1, 0, 1, 1]]  # the decisions
    labels = torch.tensor([0, 0, 0, 1, -100])
    batches = [(logits[:2], labels[:2]), (logits[2:], labels[2:])]
    found = measure_by_class(network, batches, class_metrics()[:1])
    assert (found.values, found.examples) == ({"accuracy": 75.0}, 5)
    assert found.class_accuracies == (pytest.approx(200 / 3), 100.0, None, None)
    many = torch.eye(1001)
    assert measure_by_class(network, [(many, torch.arange(1001))], class_metrics()[:1]).class_accuracies == ()
    assert measure_by_class(network, [(logits, logits)], number_metrics()).class_accuracies == ()


@pytest.fixture(params=["highest", "high"])
def chosen(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("chosen")
def test_a_network_is_tested_with_all_of_float32_and_settings_are_left_as_they_were():
    before = precisions()
    model = Recording()
    logits = torch.eye(4)
    assert accuracy(model, [(logits, torch.tensor([0, 1, 2, 0]))]) == 75
    assert model.seen == ["ieee", "ieee", "ieee", False, False, "highest"]
    assert precisions() == before
    with pytest.raises(ValueError, match="no pair"):
        accuracy(model, [logits])
    assert precisions() == before


def test_accuracy_counts_what_is_right_and_refuses_what_is_no_classifier():
    network = torch.nn.Identity()
    network.register_parameter("device", torch.nn.Parameter(torch.zeros(1)))
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert accuracy(network, [(logits, torch.tensor([0, 1, 1])), (logits[:1], torch.tensor([0]))]) == 75.0
    with pytest.raises(ValueError, match="accuracy cannot be computed: it is for logits"):
        accuracy(network, [(torch.zeros(2, 3, 4), torch.zeros(2))])
    with pytest.raises(ValueError, match="nothing to test on"):
        accuracy(network, [])


def test_errors_of_a_network_are_explained_with_its_inputs():
    said = r"^the network cannot be run on images: too large; try smaller ones$"
    with pytest.raises(ValueError, match=said), explained("images", "; try smaller ones"):
        raise RuntimeError("too large\nmore about it")
    with pytest.raises(ValueError, match="images: KeyError: 'size'"), explained("images"):
        raise KeyError("size")
    with pytest.raises(KeyboardInterrupt), explained("images"):
        raise KeyboardInterrupt
