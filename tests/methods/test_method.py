"""What the methods say about themselves."""

import pytest

from bayesbits.methods import METHODS
from bayesbits.training.config import OptimizerConfig


def test_names_and_titles_are_unique_and_papers_are_named():
    assert all(name == method.name for name, method in METHODS.items())
    assert len({method.title for method in METHODS.values()}) == len(METHODS)
    assert all(method.paper for method in METHODS.values())


@pytest.mark.parametrize("name", METHODS)
def test_options_of_the_optimizer_are_valid(name):
    OptimizerConfig(**METHODS[name].ranges)


def test_which_methods_learn_widths_and_which_have_gates():
    gated = {name for name, method in METHODS.items() if method.gated}
    assert gated == {"bayesian_bits", "reinforce"}
    learning = {name for name, method in METHODS.items() if method.learns_widths}
    assert learning == gated | {"dq", "dq_restricted", "fracbits", "learned_width"}
    assert all(method.folds == method.gated for method in METHODS.values())
