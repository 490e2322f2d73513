"""The head of the page: numbers with their comparisons, as people say them, and what is wrong."""

from dataclasses import replace

import pytest

import bayesbits as bb
from bayesbits.recipes.run_state import recorded
from bayesbits.records.front import Front, Point
from bayesbits.report.headline import Card, cards, progress, title_of, verdict_of
from bayesbits.report.run_data import read_run
from tests.report.runs import write_bench, write_run, write_verification


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path)
    return read_run(tmp_path)


def test_the_cards_compare_with_the_float_network(run):
    score, bops, weights, verified = cards(run)
    assert score == Card("Test accuracy", "97.50%", "98.25%", "-0.75 points, worse")
    assert bops == Card("Bit operations", "17.4%", "100%", "5.7x fewer")
    assert weights == Card("Weights", "71 bytes", "288 bytes", "4.1x smaller")
    assert verified.value == "not verified"
    assert title_of(run) == "digits-lenet5: 5.7x fewer bit operations"


@pytest.mark.parametrize(("budget", "state", "said"), [("18% bops", "good", "within"), ("17% bops", "bad", "above")])
def test_the_budget_is_kept_or_not(run, budget, state, said):
    card = cards(replace(run, recipe=replace(run.recipe, search=bb.SearchConfig(budget=budget))))[1]
    assert card.state == state
    assert card.note == f"5.7x fewer; {said} the budget of {budget.split('%')[0]}%"


def test_latency_is_measured_or_predicted(run, tmp_path):
    bench = write_bench(tmp_path)
    assert cards(replace(run, bench=bench))[3] == Card(
        "Latency, measured", "2 ms", "4 ms", "2x faster; one example, one thread", "good"
    )
    slow = replace(bench, files=(bench.files[0], replace(bench.files[1], seconds=5e-3)))
    assert cards(replace(run, bench=slow))[3].note.startswith("not faster")
    predicted = replace(run, result=replace(run.result, latency_ms=2.5))
    assert cards(predicted)[3] == Card("Latency, predicted", "2.5 ms", "", "by the latency table of the budget")
    measured = replace(run, result=replace(run.result, latency_ms=2.5, measured_latency_ms=2.75))
    assert cards(measured)[3].value == "2.75 ms"


def test_verification_is_proven_or_failed(run, tmp_path):
    write_verification(tmp_path)
    assert cards(read_run(tmp_path))[-1] == Card(
        "Integer network", "proven equal", "", "to the trained one, on 360 examples", "good"
    )
    write_verification(tmp_path, failure="head differs")
    assert cards(read_run(tmp_path))[-1].state == "bad"


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        ("within the budget of 1% bops: 0.9% bops", "good"),
        ("not within the budget of 1% bops: 2% bops", "bad"),
        ("within the budget of 1% bops: 0.9% bops; 8 points lost: train longer", "bad"),
        ("17% of the bit operations are left", ""),
        ("no gate closed: 100% of the bit operations are left", "bad"),
    ],
)
def test_the_verdict_is_a_sentence(run, verdict, state):
    text, found = verdict_of(replace(run, result=replace(run.result, verdict=verdict)))
    assert text == f"{verdict[0].upper()}{verdict[1:]}."
    assert found == state


def test_unfinished_and_damaged_runs_have_titles(run):
    assert title_of(replace(run, unfinished="no result")) == "digits-lenet5: not finished"
    assert title_of(replace(run, cost=None)) == "digits-lenet5: damaged"
    assert cards(replace(run, result=None, cost=None)) == []
    assert verdict_of(replace(run, result=None)) == ("", "")


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    write_run(tmp_path)
    for name in ("result.json", "plan.json"):
        (tmp_path / name).unlink()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(line for line in lines if "finetune" not in line))
    so_far, loss, bops = cards(read_run(tmp_path))
    assert so_far.name == "So far"
    assert so_far.note.startswith("search, epoch")
    assert (loss.value, bops.value) == ("0.5", "10%")
    (tmp_path / "metrics.jsonl").unlink()
    assert cards(read_run(tmp_path)) == []


def test_post_training_says_how_many_points_it_has_and_not_the_epochs_of_the_float_training(tmp_path):
    write_run(tmp_path)
    (tmp_path / "result.json").unlink()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(line.replace("search", "float") for line in lines))
    assert progress(read_run(tmp_path))[0].startswith(("float training, epoch", "fine-tuning, epoch"))
    with pytest.raises(KeyboardInterrupt), recorded(tmp_path, "bayesbits posttrain", "post-training", 9):
        raise KeyboardInterrupt
    assert progress(read_run(tmp_path)) == ("post-training, 0 of 9 points", 0.0)
    point = bb.Plan({}, {})
    Front(tuple(Point(point, cost, {}) for cost in (6.0, 4.0, 2.0))).save(tmp_path / "front.json")
    run = read_run(tmp_path)
    assert progress(run) == ("post-training, 3 of 9 points", pytest.approx(100 / 3))
    assert [(card.name, card.value, card.note) for card in cards(run)] == [
        ("So far", "33%", "post-training, 3 of 9 points")
    ]


def test_a_run_in_parts_has_the_numbers_of_its_result(tmp_path):
    write_run(tmp_path)
    (tmp_path / "topology.json").unlink()
    run = read_run(tmp_path)
    assert title_of(run) == "digits-lenet5: incomplete"
    assert [(card.name, card.value) for card in cards(run)] == [
        ("Test accuracy", "97.50%"), ("Bit operations", "17.4%"), ("Weights", "71 bytes")
    ]  # fmt: skip
