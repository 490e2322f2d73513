"""The sensitivity baseline from the command line, on digits."""

import re

import bayesbits as bb
from bayesbits.baselines import Sensitivity
from bayesbits.baselines.sensitivity_scores import Measurement
from tests.cli.invoke import SHORT, bayesbits

RUN = ["sensitivity", "digits-lenet5", *SHORT, "--num-examples", "100", "--device", "cpu", "-o", "run"]


def test_the_baseline_goes_on_where_it_was_stopped(here, monkeypatch):
    original, done = Measurement._batch_scores, []

    def stopping(self, number, settings, *, chain):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(number)
        return original(self, number, settings, chain=chain)

    run = [*RUN, "--bits", "4"]
    monkeypatch.setattr(Measurement, "_batch_scores", stopping)
    assert "the measurements are in run/measured.json; start the same command again" in bayesbits(*run, code=130).stderr
    monkeypatch.setattr(Measurement, "_batch_scores", original)
    again = bayesbits(*run)
    assert re.findall(r"(\d) of 2 batches", again.stderr) == ["2"]
    found = Sensitivity.load(here / "run/sensitivity.json")
    assert len(found.alone) == 7  # four weights, and all activations but the network's input
    assert f"{found.front.points[0].relative_bops:.3g}%" in again.stdout


def test_the_table_of_the_baseline_names_changes_and_scores(here):
    shown = bayesbits(*RUN, "--bits", "4,2", "--budget", "2").stdout
    found = Sensitivity.load(here / "run/sensitivity.json")
    *tested, within = bb.Front.load(here / "run/sensitivity-front.json").points
    assert within.plan == found.within.plan
    assert within.relative_bops <= 2
    assert re.search(rf"within 2% bops: {re.escape(found.last_change(found.within))} .*{within.score:.2f}%", shown)
    assert "Each tensor alone" in shown
    for one in found.alone:
        assert re.search(rf"{re.escape(one.tensor)} .*{one.score:.4g}", shown)
    assert [point.plan for point in tested] == [point.plan for point in found.front.points]
    for point, own in zip(tested, found.front.points, strict=True):
        before = dict(found.path[max(0, found.path.index(own) - 1)].plan.bits)
        changed = [f"{name} -> {bits}" for name, bits in point.plan.bits.items() if bits != before[name]]
        row = rf"{re.escape(changed[0]) if changed else 'all at 16'} .*{point.score:.2f}%"
        assert re.search(row, shown)


def test_bit_widths_that_are_no_numbers_are_refused():
    assert "no bit widths" in bayesbits(*RUN, "--bits", "4;2", code=2).output
