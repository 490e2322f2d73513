"""Accuracy over cost: which results become which points, and what the axis leaves out."""

import pytest

from docs.pareto import (
    OTHER,
    OURS,
    PLAIN,
    PLAIN_OURS,
    PUBLISHED,
    REPEATED,
    SHORTER,
    TRICKS,
    Experiment,
    caption,
    pareto,
)  # fmt: skip
from tests.docs.kept import result, write

VGG = Experiment("cifar10-vgg7", "VGG-7", 3.0)


def method(name, setting, accuracy, cost, seed=0):
    return {"row": name, "setting": setting, "seed": seed, "epochs": 60, "accuracy": accuracy, "relative_bops": cost}


@pytest.fixture
def folder(tmp_path):
    distilled, rows = "cifar10-vgg7-distilled", [
        method("FP32", "plain", 93.0, 100.0), method("LSQ 4/4", "plain", 93.0, 1.5), method("DQ", "plain", 80.0, 1.5),
        method("LSQ 4/4", "tricks", 93.5, 1.5), method("LSQ 4/4", "plain", 93.2, 1.7, seed=1),
        method("Bayesian Bits mu=0.01", "plain", 93.3, 0.5), method("PACT", "plain", 93.4, 1.6) | {"outdated": "why"},
    ]  # fmt: skip
    return write(
        tmp_path,
        cifar10_vgg7_mu0__1_seed0=result("cifar10-vgg7", 92.5, relative_bops=0.3, epochs=300),
        cifar10_vgg7_mu0__1_seed1=result("cifar10-vgg7", 92.7, relative_bops=0.34, epochs=300, seed=1),
        cifar10_vgg7_distilled_budget0__45_seed0=result(distilled, 93.8, relative_bops=0.45, epochs=200),
        cifar10_vgg7_distilled_budget0__35_seed0=result(distilled, 93.5, relative_bops=0.35, epochs=200),
        cifar10_vgg7_distilled_60epochs_budget0__35_seed0=result(distilled, 93.2, relative_bops=0.35, epochs=60),
        cifar10_vgg7_distilled_validation_budget0__28_seed0=result(distilled, 93.1, relative_bops=0.28, epochs=200),
        cifar10_vgg7_distilled_prune_false_budget0__45_seed0=result(distilled, 92.0, relative_bops=0.45, epochs=200),
        mnist_lenet5_mu0__1_seed0=result("mnist-lenet5", 99.0),
        methods_cifar10_vgg7={"rows": rows},
    )


def test_our_searches_are_means_with_errors_and_shorter_ones_are_told_apart(folder):
    plot, below = pareto(VGG, folder)
    by_style = {style: [one for one in plot.points if one.style == style] for style in (OURS, SHORTER, REPEATED)}
    (repeated,) = by_style[REPEATED]
    assert (repeated.x, repeated.y, repeated.label) == (pytest.approx(0.32), pytest.approx(92.6), "mu 0.1")
    assert (repeated.x_error, repeated.y_error) == (pytest.approx(0.02), pytest.approx(0.1))
    assert {(one.y, one.label, one.y_error) for one in by_style[OURS]} == {
        (93.8, "budget 0.45%", None), (93.5, "budget 0.35%", None),
    }  # fmt: skip
    assert {one.y for one in by_style[SHORTER]} == {93.2, 93.1}  # fewer epochs, and images held back; no ablation
    assert ([(0.35, 93.5), (0.45, 93.8)], OURS) in plot.lines
    assert [one.label for one in below] == ["DQ"]
    assert all(plot.y[0] <= one.y <= plot.y[1] for one in plot.points)
    plot.svg()
    words = caption(plot, below)
    assert "4 of our 5 circles, of one seed, have none." in words
    assert "Below the axis: DQ: 80.00 at 1.5." in words


def test_rows_of_other_lengths_have_them_in_their_labels(tmp_path):
    rows = [
        method("LSQ 2/2", "plain", 92.0, 0.4), method("LSQ 2/2", "plain", 93.0, 0.4) | {"epochs": 300},
        method("TWN 2/32", "plain", 92.5, 6.2),
        method("TWN 2/32", "plain", 92.0, 6.2) | {"epochs": 9, "outdated": "why"},
    ]  # fmt: skip
    plot, _ = pareto(VGG, write(tmp_path, methods_cifar10_vgg7={"rows": rows}))
    labels = {one.label for one in plot.points if one.style == PLAIN}
    assert labels == {"LSQ 2/2, 60 epochs", "LSQ 2/2, 300 epochs", "TWN 2/32"}


def test_published_points_have_the_errors_that_were_published_and_methods_both_settings(folder):
    plot, _ = pareto(VGG, folder)
    paper = {one.label: one for one in plot.points if one.style == PUBLISHED}
    assert (paper["mu 0.01"].y, paper["mu 0.01"].y_error, paper["mu 0.01"].x_error) == (93.23, 0.10, 0.03)
    assert paper["deterministic, mu 0.01"].y_error is None
    assert {"GETA (2025)", "RQ 8/8"} <= {one.label for one in plot.points if one.style == OTHER}
    plain, tricks = (next(one for one in plot.points if one.style == style) for style in (PLAIN, TRICKS))
    assert (plain.y, plain.x, plain.label) == (pytest.approx(93.1), pytest.approx(1.6), "")
    assert (tricks.y, tricks.label) == (93.5, "LSQ 4/4")  # of two, the upper one has the label
    assert any(way == ((tricks.x, tricks.y), (plain.x, plain.y)) for way, _ in plot.lines)
    assert [one.label for one in plot.points if one.style == PLAIN_OURS] == ["mu 0.01"]
    assert all(one.x < 10 for one in plot.points)
    assert plot.x[0] < 0.28
    assert plot.x[1] > 6.25


def test_without_results_the_published_points_are_there(tmp_path):
    plot, below = pareto(VGG, tmp_path)
    assert {one.style for one in plot.points} == {PUBLISHED, OTHER}
    assert below == []
