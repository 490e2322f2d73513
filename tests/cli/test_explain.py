"""The decomposition of a tensor on the command line."""

import pytest

from bayesbits.cli import explain
from bayesbits.compression.decomposition import Decomposition, Term
from tests.cli.invoke import SHORT, bayesbits


def test_terms_and_values_are_shown(capsys):
    terms = (Term(2, 0.5, 0.4, 20.0, True, (0.5, -0.5)), Term(4, 0.1, 0.05, 1.5, False, (0.1, 0.0)))
    explain.show(Decomposition("a.weight", 2, 1234, terms, (0.62, -0.48)))
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["x_2", "0.5", "0.4", "20%", "kept"] in lines
    assert ["eps_4", "0.1", "0.05", "1.5%", "not", "kept"] in lines
    assert ["0.62", "+0.5", "+0.1", "0.5"] in lines  # what is closed is not in the result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "digits"
    bayesbits("search", "digits-lenet5", *SHORT, "--device", "cpu", "--output", place)
    return place


def test_a_run_lists_its_tensors_and_explains_one(folder):
    listed = bayesbits("explain", folder).stdout
    assert "  features.0.weight  " in listed
    shown = bayesbits("explain", folder, "features.3.input").stdout
    assert shown.startswith("features.3.input: ")
    assert "eps_8" in shown
    assert "there are: features.0.weight" in bayesbits("explain", folder, "stranger", code=1).stderr
