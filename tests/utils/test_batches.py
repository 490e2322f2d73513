"""Batches: which forms of inputs there are, and what they are taken for."""

import pytest
import torch
from torch import nn

from bayesbits.utils.batches import (
    all_examples_equal,
    call_model,
    call_without_labels,
    count_examples,
    split_inputs,
    to_device,
)


class Difference(nn.Module):
    def forward(self, a, b):
        return a - b


A, B = torch.tensor([3.0, 5.0]), torch.tensor([1.0, 1.0])


@pytest.mark.parametrize("inputs", [(A, B), [A, B], {"b": B, "a": A}])
def test_tuples_and_lists_are_positional_and_mappings_keyword_inputs(inputs):
    assert call_model(Difference(), inputs).tolist() == [2.0, 4.0]


def test_a_tensor_is_the_only_input_and_other_types_are_refused():
    assert split_inputs(A) == ((A,), {})
    with pytest.raises(TypeError, match="example_inputs is a int; give a tensor, a tuple of positional inputs, or a"):
        split_inputs(3)


def test_an_object_of_another_class_is_the_only_input():
    class Length(nn.Module):
        def forward(self, text):
            return len(text)

    assert call_model(Length(), "three") == 5


def test_an_error_about_several_inputs_asks_for_labels():
    with pytest.raises(TypeError, match=r"the 3 elements .* pass only the inputs: `\(x for x, _ in loader\)`"):
        call_without_labels(Difference(), (A, B, A))
    with pytest.raises(TypeError, match="missing 1 required"):
        call_without_labels(Difference(), (A,))
    with pytest.raises(TypeError, match="a batch is a str; give a tensor"):
        call_without_labels(Difference(), "three")


def test_examples_are_counted_along_the_first_tensor_that_has_any():
    assert count_examples({"flag": True, "scale": torch.tensor(2.0), "x": torch.zeros(3, 2)}) == 3
    with pytest.raises(ValueError, match="holds no tensor of examples: it is a dict"):
        count_examples({"scale": torch.tensor(2.0)})


def test_examples_are_equal_over_batches_only_if_all_are():
    same = [torch.ones(2, 3), torch.ones(1, 3)]
    assert all_examples_equal(same)
    same[1][0, 2] = 0
    assert not all_examples_equal(same)
    assert not all_examples_equal([(torch.ones(2, 3), torch.tensor([0, 1]))])
    assert not all_examples_equal([torch.ones(2, 3), torch.ones(2, 4)])


def test_nested_tensors_move_and_the_rest_stays():
    moved = to_device({"x": [A, "text"], "n": 3}, torch.device("meta"))
    assert moved["x"][0].device.type == "meta"
    assert moved["x"][1:] == ("text",)
    assert moved["n"] == 3
