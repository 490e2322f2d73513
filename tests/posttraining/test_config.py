"""What a user may choose about post-training."""

import dataclasses
import re

import pytest

from bayesbits import PosttrainConfig


def test_a_list_of_mus_becomes_a_tuple():
    assert PosttrainConfig(mus=[0, 1]).mus == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mus": ()}, "mus is"),
        ({"mus": 0.1}, "it is a tuple of numbers"),
        ({"mus": (0.1, float("nan"))}, "it is a tuple of numbers"),
        ({"mus": (0.1, 0.01)}, "they increase"),
        ({"mus": (-0.1, 0.01)}, "no weight is negative"),
        ({"loss": "mae"}, "labels, output, layers, cosine, mse"),
        ({"calibration": "max"}, "minmax"),
        ({"steps": 0}, "steps is 0; it is an integer of at least 1"),
        ({"seed": -1}, "seed"),
        ({"gate_lr": 0.0}, "positive"),
        ({"range_lr": True}, "positive"),
    ],
)
def test_wrong_choices_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PosttrainConfig(**options)


def test_help_explains_every_field():
    arguments = PosttrainConfig.__doc__.partition("Args:")[2].partition("Raises:")[0]
    explained = [line.split(":")[0].strip() for line in arguments.splitlines() if re.match(r" {8}\w+: \S", line)]
    assert explained == [field.name for field in dataclasses.fields(PosttrainConfig)]
