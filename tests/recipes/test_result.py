"""The result of a run: written, read, and computed from costs, scores and the time of every stage."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.process import Process
from bayesbits.recipes.result import layer_rows, method_of, result_of_run
from bayesbits.training.metrics import MetricsLog
from tests.deploy.tables import fixed_words
from tests.graph.attention import attention, examples
from tests.nn.recurrent import compressed

RECIPE = recipes.Recipe("mine", recipes.DataConfig("digits"), recipes.ModelConfig("lenet5"), seed=3)
SCORES = (Score("accuracy", 97.5, 98.0, "%", True),)


def compressor() -> bb.Compressor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    return bb.attach(model, torch.zeros(1, 4), bb.Spec(prune=False))


@pytest.fixture
def result(tmp_path):
    for phase, seconds in (("float", (1.0, 4.0)), ("search", (10.0, 16.0))):
        metrics = MetricsLog(tmp_path / "metrics.jsonl", phase)
        for step, value in enumerate(seconds):
            metrics.write("train", {"step": step, "seconds": value})
    attached = compressor()
    plan = bb.Plan.uniform(attached.topology, 4, 8)
    return result_of_run(RECIPE, tmp_path, attached, plan, Process(torch.device("cpu")), scores=SCORES, advice="more")


def test_costs_are_those_of_the_plan_and_of_float(result):
    # 24 and 12 MACs, each at 4 x 8 of 32 x 32 bits.
    assert result.relative_bops == pytest.approx(100 * 32 / 1024)
    assert result.float_weight_bytes == 4 * (24 + 6 + 12 + 2)
    assert result.weight_bytes < result.float_weight_bytes
    assert [(row["name"], row["channels_in"], row["channels_out"]) for row in result.layers] == [
        ("0", 4, 6),
        ("2", 6, 2),
    ]
    assert (result.recipe, result.seed, result.mu, result.advice) == ("mine", 3, 0.01, "more")
    assert (result.accuracy, result.float_accuracy) == (97.5, 98.0)


def test_the_time_is_the_last_of_every_stage_summed(result):
    assert result.seconds == 4.0 + 16.0
    assert result.stage_seconds == {"float": 4.0, "search": 16.0}


def test_other_processes_than_the_first_read_no_time(tmp_path):
    attached = compressor()
    (tmp_path / "metrics.jsonl").write_text("not read")
    process = Process(torch.device("cpu"), 1, 2)
    assert result_of_run(RECIPE, tmp_path, attached, attached.plan(), process, scores=()).seconds == 0


def test_a_result_is_read_as_it_was_written(result, tmp_path):
    path = tmp_path / "result.json"
    result = replace(result, class_accuracies=(97.0, None), float_class_accuracies=(98.0, None), search_accuracy=96.0)
    result.save(path)
    assert recipes.Result.load(path) == result


def test_a_file_of_an_earlier_version_has_the_accuracy_as_its_score(result, tmp_path):
    path = tmp_path / "result.json"
    result.save(path)
    old = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("metrics", "executions")}
    path.write_text(json.dumps(old))
    assert recipes.Result.load(path).scores == SCORES


def test_the_method_is_named_by_what_is_learned():
    assert method_of(bb.Spec()) == "bayesian_bits"
    assert method_of(bb.Spec(prune=False)) == "bayesian_bits_quantization_only"
    assert method_of(bb.Spec(bits=(8,))) == "bayesian_bits_pruning_only"
    assert method_of(bb.Spec(method="lsq")) == "lsq"


def test_rows_have_the_channels_of_the_float_network():
    attached = compressor()
    rows = layer_rows(attached.cost(attached.plan()), attached.topology)
    assert [row["macs"] for row in rows] == [24, 12]
    assert rows[1]["channels_in"] == 6


def test_products_of_two_activations_have_a_row_without_channels():
    compressor = bb.attach(attention(), examples(1), bb.Spec(bits=(4, 8), activation_products=True))
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    rows = layer_rows(compressor.cost(), compressor.topology)
    assert [row["name"] for row in rows] == ["qkv", "proj", "sdpa.scores", "sdpa.context"]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert (rows[2]["weight_bits"], rows[2]["activation_bits"], rows[2]["channels_in"]) == (8, 8, 0)
    assert sum(row["share"] for row in rows) == pytest.approx(100)


def test_tables_of_embeddings_have_a_row_with_bits_and_bytes():
    compressor = fixed_words(4)
    cost = compressor.cost()
    rows = layer_rows(cost, compressor.topology)
    assert [row["name"] for row in rows] == ["head", "words", "positions"]
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert [(row["weight_bits"], row["activation_bits"]) for row in rows] == [(8, 8), (4, None), (4, None)]
    assert sum(row["weight_bytes"] for row in rows) == sum(entry.weight_bytes for entry in (*cost.layers, *cost.tables))


def test_weights_of_recurrent_layers_have_a_row_with_macs_and_float_activations():
    compressor = compressed(spec={"bits": (4,)})
    rows = layer_rows(compressor.cost(), compressor.topology)
    assert [(row["name"], row["activation_bits"]) for row in rows[2:]] == [
        ("cell.weight_ih_l0", 32),
        ("cell.weight_hh_l0", 32),
    ]
    assert sum(row["macs"] for row in rows) == compressor.topology.macs
    assert sum(row["share"] for row in rows) == pytest.approx(100)


def test_a_latency_that_was_measured_on_another_processor_is_called_so(result):
    assert result.with_measured_latency(2.0, "this CPU", "this CPU").verdict.endswith("; measured: 2 ms on this CPU")
    other = result.with_measured_latency(2.0, "this CPU", "that CPU")
    assert other.verdict.endswith("2 ms on this CPU, which is not the processor of the latency table, that CPU")
    assert other.with_measured_latency(3.0, "that CPU", "that CPU").verdict.endswith("; measured: 3 ms on that CPU")
