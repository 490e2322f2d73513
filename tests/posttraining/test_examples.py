"""Examples that nothing can be learned from are refused, with the reason."""

import pytest
import torch

from bayesbits.posttraining.examples import LEAST_EXAMPLES, take_batches


def test_inputs_and_labels_are_taken_apart_once_from_any_iterable():
    x, y = torch.randn(40, 3), torch.arange(40)
    inputs, labels = take_batches(zip(x.split(16), y.split(16), strict=True), labeled=True)
    assert [len(batch) for batch in inputs] == [16, 16, 8]
    assert torch.equal(torch.cat(labels), y)
    assert take_batches(iter(x.split(16)), labeled=False)[1] == []


@pytest.mark.parametrize("batch", [torch.randn(40, 3), (torch.randn(40, 3),), {"x": torch.randn(40, 3)}])
def test_labels_that_are_missing_are_asked_for(batch):
    with pytest.raises(ValueError, match=r"batch 1 .* has no labels.*loss='output'"):
        take_batches([(torch.randn(40, 3), torch.zeros(40)), batch], labeled=True)


def test_one_tensor_is_no_batches():
    with pytest.raises(TypeError, match=r"pass x\.split"):
        take_batches(torch.randn(64, 3), labeled=False)


@pytest.mark.parametrize("labels", [torch.arange(64), torch.randn(64)])
def test_one_pair_is_no_batches(labels):
    for labeled, way_out in ((True, r"zip\(x\.split\(64\), y\.split\(64\)\)"), (False, "the inputs alone")):
        with pytest.raises(TypeError, match=f"one pair of tensors.*{way_out}"):
            take_batches((torch.randn(64, 3), labels), labeled=labeled)
    assert len(take_batches(torch.randn(64, 3).split(32), labeled=False)[0]) == 2


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite(value):
    x, y = torch.randn(40, 3), torch.randn(40)
    broken = x.clone()
    broken[3, 1] = value
    for batches in ([(x, y), (broken, y)], [(x, y), (x, broken[:, 1])]):
        with pytest.raises(ValueError, match=r"batch 1 .* has values that are NaN or infinite"):
            take_batches(batches, labeled=True)
    tokens = torch.arange(40).reshape(40, 1)
    assert take_batches([{"tokens": tokens}], labeled=False)[0]


@pytest.mark.parametrize("count", [0, LEAST_EXAMPLES - 1])
def test_too_few_examples(count):
    with pytest.raises(ValueError, match=f"{count} examples are too few"):
        take_batches(list(torch.randn(count, 3).split(8)) if count else [], labeled=False)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, x), lambda x: {"x": x, "mask": torch.ones(len(x))}])
def test_constant_examples(form):
    constant = torch.tensor([[1.0, -2.0]]).expand(20, 2)
    with pytest.raises(ValueError, match="all 40 examples are the same"):
        take_batches([form(constant), form(constant)], labeled=False)
    different = constant.clone()
    different[7, 1] = 0.0
    assert take_batches([form(constant), form(different)], labeled=False)[0]


def test_a_batch_without_a_tensor():
    with pytest.raises(ValueError, match="no tensor of examples: it is a str"):
        take_batches(["x"], labeled=False)
