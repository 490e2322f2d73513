"""Runs that differ in the seed alone are one point, with the mean and its standard error."""

from dataclasses import replace

import pytest

import bayesbits as bb
from bayesbits.report import seed_groups
from bayesbits.report.run_data import read_run
from tests.report.compared_runs import compared_runs
from tests.report.runs import write_run


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path)
    return compared_runs(read_run(tmp_path))


def test_runs_that_differ_in_the_seed_alone_are_one_point(runs):
    first, second, third = seed_groups.groups_of(runs)
    assert (first.name, first.setting, first.place) == ("digits-lenet5, Bayesian Bits", "mu 0.1", (2.0, 80.0))
    assert (len(second.runs), second.place) == (2, (5.0, 91.0))
    assert third.name == "mnist-lenet5, Bayesian Bits"


def test_means_over_seeds_have_their_standard_errors(runs):
    assert seed_groups.means(runs)[1] == ("digits-lenet5, Bayesian Bits, mu 0.01", "2", "91.00 ± 1.00%", "5.00 ± 1.00%")
    assert seed_groups.means(runs[:3])[0] == ("mu 0.1", "1", "80.00%", "2%")
    assert seed_groups.means([runs[0], runs[2]]) == []  # one seed each: the table of runs says it all
    assert seed_groups.means([replace(runs[0], result=None)]) == []


def test_another_setting_or_another_network_to_start_from_is_no_other_seed(runs):
    config = replace(runs[1].recipe, search=bb.SearchConfig(mu=0.01, epochs=77))
    assert len(seed_groups.groups_of([runs[0], replace(runs[1], recipe=config)])) == 2
    model = replace(runs[1].recipe.model, checkpoint="other.pth")
    loaded = replace(runs[1].recipe, model=model, float_training=None)
    trained = replace(runs[0].recipe, float_training=None)
    assert len(seed_groups.groups_of([replace(runs[0], recipe=trained), replace(runs[1], recipe=loaded)])) == 2


def test_a_budget_is_the_setting_of_a_run(runs):
    assert seed_groups.setting_of(
        replace(runs[0], recipe=replace(runs[0].recipe, search=bb.SearchConfig(budget="1% bops")))
    ) == ("budget 1% bops")
