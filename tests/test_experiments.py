"""What the experiments conclude from their figures, and the conversion of CIFAR-10's mosaics."""

import json
import shlex
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import bayesbits as bb
from bayesbits import recipes
from bayesbits.cli.sweep import SweepOptions, planned_runs
from bayesbits.compression.smallest_plan import check_reachable
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.result import method_of
from bayesbits.recipes.run import run
from bayesbits.records.front import Front, Point
from bayesbits.records.plan import Plan
from bayesbits.zoo import data
from experiments import cifar10_mosaics, foreign_files
from experiments.efficientnet_lite0 import between
from experiments.foreign_networks import random_plan
from experiments.front_picture import draw_fronts
from experiments.fronts import compare
from experiments.keep import RESULTS, changes, command_of, history, keep, name_of, text_of
from experiments.keep import main as keep_main
from experiments.posttrain import as_typed, parse, thinned, to_round
from experiments.run_time import OURS, SENTENCES, sentences, write_ours
from experiments.transformer_configs import NETWORKS
from experiments.transformer_networks import RESULTS as TRANSFORMERS
from experiments.transformer_networks import run_stages
from experiments.weight_ranges import paired_difference
from tests.latency_tables import made_up_table
from tests.recipes.made_data import SHORT_DIGITS
from tests.zoo.data_files import Bytes, cifar_arrays, refused


def runs(*points: tuple[float, float]) -> list:
    return [{"seed": 0, "points": [{"relative_bops": cost, "accuracy": accuracy} for cost, accuracy in points]}]


def test_fronts_are_compared_at_the_cost_of_each_learned_point():
    methods = {
        "gates": runs((0.5, 70), (2, 80), (6, 91), (6.5, 95)),
        "sensitivity": runs((1, 10), (3, 86), (7, 90)),
        "8/8 minmax": runs((6.25, 90)),
        "8/8 mse": runs((6.25, 90.5)),
    }
    found = compare({"methods": methods})
    over = found["gates over sensitivity"]
    assert [point["points_better_by"] for point in over["points"]] == [80 - 48, 91 - 89, 95 - 89.5]  # the line
    assert over["points_better_by_on_average"] == (32 + 2 + 5.5) / 3
    assert (over["points_of_the_front_above"], over["points_of_the_front"]) == (3, 3)
    assert found["gates over 8/8 within 6.25%"] == [1, 0.5]
    assert "gates+ranges over gates" not in found


def test_fronts_are_compared_seed_by_seed():
    first, second = runs((2, 80)), runs((2, 90))
    second[0]["seed"] = 1
    found = compare({"methods": {"gates": first + second, "sensitivity": runs((1, 85)), "gates adaround": first}})
    over = found["gates over sensitivity"]
    assert [(point["seed"], point["points_better_by"]) for point in over["points"]] == [(0, -5)]
    assert list(found) == ["gates over sensitivity"]


def test_a_front_that_falls_with_cost_is_held_against_its_best_cheaper_point():
    found = compare({"methods": {"gates": runs((2, 80), (9, 95)), "sensitivity": runs((1, 90), (3, 70))}})
    assert [point["points_better_by"] for point in found["gates over sensitivity"]["points"]] == [-10, 5]


def test_points_to_round_are_those_nearest_to_a_cost():
    points = [Point(Plan({}, {}), cost, {}) for cost in (6.0, 4.0, 2.5, 1.1)]
    assert [point.relative_bops for point in to_round(points, [4.4, 1.2, 1.0])] == [4.0, 1.1]
    assert to_round(points, None) == points


def test_points_are_thinned_evenly():
    assert thinned(list(range(9)), 3) == [0, 4, 8]  # type: ignore[arg-type]
    assert thinned([1, 2], 3) == [1, 2]  # type: ignore[arg-type]
    assert thinned([1, 2], 1) == [2]  # type: ignore[arg-type]


def test_three_seeds_and_a_thousand_images_unless_others_are_asked_for():
    options = parse(["--data", "here", "--seeds", "5"])
    assert (options.seeds, options.examples, options.mus) == (5, 1024, None)


def test_a_recorded_command_can_be_repeated_and_names_no_machine():
    typed = as_typed(["--data", "/some/where", "--out", "/else/where", "--adaround", "8/8 mse", "gates"])
    assert typed == "--data FOLDER --adaround '8/8 mse' gates"
    assert as_typed(["--data=/some/where", "--out=/else/where", "--seeds=1"]) == "--data FOLDER --seeds 1"
    files = ["--files", "/some/where", "--latency-table=/some/table20.json", "--kinds", "latency"]
    assert as_typed(files) == "--files FILES --latency-table table.json --kinds latency"


def test_a_paired_difference_counts_only_images_that_differ():
    ours, theirs = torch.tensor([True] * 90 + [False] * 10), torch.tensor([True] * 86 + [False] * 12 + [True] * 2)
    difference, error = paired_difference(ours, theirs)
    assert difference == pytest.approx(2.0)
    variance = (4 * 98**2 + 2 * 102**2 + 94 * 2**2) / 99
    assert error == pytest.approx((variance / 100) ** 0.5)
    assert paired_difference(ours, ours) == (0.0, 0.0)


def write_mosaics(folder: Path, arrays: Mapping[str, tuple[Bytes, Bytes]], columns: int, parts: bool) -> None:
    """Each batch's images side by side, `columns` in a row; in part1 and part2, or all in one folder."""
    for name, (images, _) in arrays.items():
        place = folder / ("part1" if name <= "data_batch_3" else "part2") if parts else folder
        place.mkdir(parents=True, exist_ok=True)
        rows = [np.concatenate(list(images[start : start + columns]), 2) for start in range(0, len(images), columns)]
        mosaic = np.concatenate(rows, 1).transpose(1, 2, 0)
        Image.fromarray(mosaic).save(place / f"{name}.webp", lossless=True)
    labels = np.concatenate([labels for _, labels in arrays.values()])
    labels.tofile((folder / "part2" if parts else folder) / "labels.u8")


@pytest.mark.parametrize(("columns", "parts"), [(3, True), (2, False)])
def test_mosaics_become_the_batches_that_the_zoo_reads(tmp_path, capsys, columns, parts):
    arrays = cifar_arrays()
    write_mosaics(tmp_path / "mosaics", arrays, columns, parts)
    cifar10_mosaics.main([str(tmp_path / "mosaics"), str(tmp_path / "out")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "cifar-10-batches-py")
    cifar = data.load("cifar10", tmp_path / "out")
    images, labels = (np.concatenate(part) for part in zip(*list(arrays.values())[:5], strict=True))
    assert np.array_equal(cifar.train.images.numpy(), images)
    assert np.array_equal(cifar.train.labels.numpy(), labels)
    assert np.array_equal(cifar.test.images.numpy(), arrays["test_batch"][0])
    assert np.array_equal(cifar.test.labels.numpy(), arrays["test_batch"][1])


def test_wrong_mosaics_are_named_with_what_is_wrong(tmp_path):
    arrays = cifar_arrays()
    write_mosaics(tmp_path, arrays, columns=3, parts=False)
    labels = np.fromfile(tmp_path / "labels.u8", np.uint8)
    labels[:-1].tofile(tmp_path / "labels.u8")
    with refused(ValueError, tmp_path / "labels.u8", "35 labels", "36 tiles"):
        cifar10_mosaics.convert(tmp_path, tmp_path / "out")
    (labels + 1).tofile(tmp_path / "labels.u8")
    with refused(ValueError, tmp_path / "labels.u8", "the label 10", "0 to 9"):
        cifar10_mosaics.convert(tmp_path, tmp_path / "out")
    narrow = {name: (images[..., :31], numbers) for name, (images, numbers) in arrays.items()}
    write_mosaics(tmp_path, narrow, columns=3, parts=False)
    with refused(ValueError, tmp_path / "data_batch_1.webp", "64 x 93 pixels", "32 x 32 tiles"):
        cifar10_mosaics.convert(tmp_path, tmp_path / "out")
    for content in ((tmp_path / "data_batch_1.webp").read_bytes()[:-50], b"not a picture"):
        (tmp_path / "data_batch_1.webp").write_bytes(content)
        with refused(ValueError, tmp_path / "data_batch_1.webp", "cannot be read as a picture"):
            cifar10_mosaics.convert(tmp_path, tmp_path / "out")
    (tmp_path / "data_batch_2.webp").unlink()
    write_mosaics(tmp_path, {"data_batch_1": arrays["data_batch_1"]}, columns=3, parts=False)
    with refused(FileNotFoundError, "data_batch_2.webp", "part1 and part2"):
        cifar10_mosaics.convert(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_picture_has_a_line_for_each_front_and_a_square_for_a_single_network(tmp_path):
    path = tmp_path / "fronts.svg"
    fronts = {"learned": [(4.0, 76.0), (2.0, 70.0)], "8/8 & more": [(6.25, 76.5)], "too low": [(3.0, 1.0)]}
    draw_fronts(
        path, fronts, level=("float", 76.6), costs=(1.0, 7.0), accuracies=(60.0, 78.0), labels=("cost", "accuracy")
    )
    root = ElementTree.parse(path).getroot()
    names = [one.tag.rpartition("}")[2] for one in root.iter()]
    assert names.count("polyline") == 2
    assert names.count("circle") == 3  # two points, and one in the key
    line = next(one for one in root.iter() if one.tag.endswith("polyline") and one.get("points"))
    (left, low), (right, high) = (map(float, point.split(",")) for point in line.get("points", "").split())
    assert left < right
    assert low > high  # the cheaper point first, and further down
    assert "8/8 & more" in [one.text for one in root.iter()]


def test_between_two_points_single_widths_are_lowered_until_the_cost_is_met():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    compressor = bb.attach(model, torch.randn(4, 8), bb.Spec(prune=False))
    points = []
    for bits in (8, 4):
        plan = bb.Plan.uniform(compressor.topology, bits, 8)
        ranges = dict.fromkeys(plan.bits, bits)
        points.append(Point(plan, compressor.cost(plan).relative_bops, ranges))
    cost = points[0].relative_bops - 0.01
    found = between(compressor, Front(tuple(points)), cost)
    lowered = [name for name, bits in found.plan.bits.items() if bits < points[0].plan.bits[name]]
    assert lowered == ["4.weight"]  # the smallest of the three is enough
    assert found.relative_bops == compressor.cost(found.plan).relative_bops <= cost
    assert {name for name, of in found.ranges.items() if of == 4} == {"4.weight"}
    half = between(compressor, Front(tuple(points)), points[1].relative_bops + 0.3)
    assert [half.plan.bits[name] for name in ("0.weight", "2.weight", "4.weight")] == [4, 4, 8]


def test_plans_for_foreign_networks_lose_three_of_ten_removable_channels():
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Conv2d(20, 10, 3), nn.ReLU(), nn.Flatten(), nn.Linear(160, 4)
    )
    topology = bb.trace(model, torch.zeros(1, 3, 8, 8))
    plan = random_plan(topology)
    assert {name: len(kept) for name, kept in plan.kept.items()} == {"0": 14, "2": 7}
    assert set(plan.bits.values()) <= {2, 4, 8}
    assert plan == random_plan(topology)


def test_rows_of_foreign_networks_replace_those_of_the_same_network_and_plan(tmp_path):
    path = tmp_path / "rows.json"
    for name, plan, ties in (("menet108_8x1_g3", "8/8", 1), ("cbam_resnet18", "8/8", 2), ("menet108_8x1_g3", "8/8", 3)):
        foreign_files.keep({"network": name, "plan": plan, "ties": ties}, path)
    foreign_files.keep({"network": "menet108_8x1_g3", "plan": "random", "ties": 4}, path)
    rows = json.loads(path.read_text())
    assert [(row["network"], row["ties"]) for row in rows] == [
        ("cbam_resnet18", 2), ("menet108_8x1_g3", 3), ("menet108_8x1_g3", 4),
    ]  # fmt: skip
    one = {"logits": torch.tensor([3.0, 4.0]), "classes": torch.tensor([1])}
    assert foreign_files.distance(one, [torch.tensor([3.0, 0.0])]) == pytest.approx(4 / 3)
    assert foreign_files.first_examples((torch.zeros(4, 2), {"x": torch.zeros(4), "flag": True}), 1)[1]["flag"] is True


def gates(step: int, bits: int) -> dict:
    return {
        "phase": "search", "event": "gates", "step": step, "relative_bops": float(step), "bits": {"a.weight": bits},
        "kept": {"a": 10 - bits}, "probabilities": {"a.weight": {"4": 1 / step}},
    }  # fmt: skip


def write_run(folder: Path, *overrides: str, result: str = "{}", **options: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipes.to_toml(recipes.load("digits-lenet5", overrides, **options)))
    if result:
        (folder / "result.json").write_text(result)
    lines = [gates(step, 8 if step < 60 else 2) for step in range(1, 101)]
    lines += [
        {"phase": "search", "event": "evaluate", "step": step, "validation_accuracy": float(step - 2)}
        for step in (99, 100)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def written():
    """The text of a run's result.json: a kept file without what keeping adds."""
    kept = json.loads((RESULTS / "mnist-lenet5-mu0.01-seed0.json").read_text())
    added = ("command", "validation_accuracy", "history")
    plain = {key: value for key, value in kept.items() if key not in added}
    return json.dumps(plain | {"recipe": "digits-lenet5"})


def test_finished_runs_become_files_with_their_commands(tmp_path, capsys, written):
    overrides = ("data.validation=288", "seed=0", "search.epochs=7", "data.folder=/some/where")
    write_run(tmp_path / "runs" / "a", *overrides, result=written)
    write_run(tmp_path / "runs" / "b", "seed=1", "spec.gates=sigmoid", result=written, budget="2% bops")
    write_run(tmp_path / "runs" / "c", "seed=2", result="")
    (tmp_path / "runs" / "no run").mkdir()
    first, second = keep(tmp_path / "runs", tmp_path)
    assert capsys.readouterr().err == "c: not finished, left out\n"
    assert first.name == "digits-lenet5-7epochs-validation-mu0.01-seed0.json"
    assert second.name == "digits-lenet5-gates-sigmoid-budget2.00-seed1.json"
    content, other = json.loads(first.read_text()), json.loads(second.read_text())
    assert content["command"] == (
        "bayesbits search digits-lenet5 --set data.validation=288 --set search.epochs=7 --set data.folder=FOLDER "
        "--set seed=0"
    )
    assert "--budget '2% bops' --set spec.gates=sigmoid" in other["command"]
    assert content["validation_accuracy"] == 98.0
    assert content["history"]["bits"]["a.weight"][-1] == 2
    assert "history" not in other  # of one seed
    assert {key: content[key] for key in json.loads(written)} == json.loads(written)
    assert keep(tmp_path / "runs" / "a", tmp_path) == [first]  # again, and a single run


def test_runs_with_other_limits_tables_and_rules_have_names_and_commands_of_their_own(tmp_path):
    made_up_table(bb.trace(nn.Linear(4, 2), torch.zeros(1, 4))).save(tmp_path / "table.json")
    gates = recipes.load("mnist-lenet5", ["spec.method=reinforce"], budget="0.5% bops")
    assert "gates" not in name_of(gates)  # with a budget any recipe leaves out its gates: no setting of this run
    plain = recipes.load("digits-lenet5", budget="0.5% bops")
    both = recipes.load("digits-lenet5", budget="0.5% bops, 500 kB")
    quick = recipes.load("digits-lenet5", budget="2.5 ms", latency_table=tmp_path / "table.json")
    skipped = recipes.load("digits-lenet5", ['spec.rules={"*.weight"={skip=true}}'], budget="0.5% bops")
    found = [name_of(one) for one in (plain, both, quick, skipped)]
    assert found[0] == "digits-lenet5-budget0.50"
    assert len(set(found)) == 4
    assert "--budget '2.5 ms' --latency-table FILE" in command_of(quick)
    assert "skip" in command_of(skipped)
    assert "skip" not in command_of(plain)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["spec.method=lsq"], "mnist-lenet5-method-lsq-mu0.01"),
        (["spec.method=pact"], "mnist-lenet5-method-pact-mu0.01"),
        (["spec.method=lsq", "search.ranges.lr=0.5"], "mnist-lenet5-method-lsq-ranges.lr-0.5-mu0.01"),
    ],
)
def test_the_command_of_another_method_repeats_its_run(overrides, name):
    recipe = recipes.load("mnist-lenet5", overrides)
    assert name_of(recipe) == name
    words = shlex.split(command_of(recipe))
    settings = [after for before, after in pairwise(words) if before == "--set"]
    assert recipes.load("mnist-lenet5", settings) == recipe


def test_a_kept_file_of_another_run_is_not_overwritten_and_nothing_to_keep_is_an_error(tmp_path, written):
    (path,) = keep(write_run(tmp_path / "run", "finetune.distillation=0.5", result=written), tmp_path)
    before = path.read_text()
    with pytest.raises(ValueError, match=r"is of another run: .*finetune.distillation=0.5 .*distillation=0.25"):
        keep(write_run(tmp_path / "other", "finetune.distillation=0.25", result=written), tmp_path)
    assert path.read_text() == before
    with pytest.raises(ValueError, match="holds no runs"):
        keep(tmp_path / "nothing", tmp_path)
    write_run(tmp_path / "damaged", result="{")
    with pytest.raises(SystemExit, match="is damaged"):
        keep_main([str(tmp_path / "damaged"), "--results", str(tmp_path)])


@pytest.mark.check
def test_networks_of_earlier_results_are_tested_again_class_by_class(tmp_path):
    result = run(recipes.load("digits-lenet5", SHORT_DIGITS), tmp_path / "run", progress=False, say=lambda _: None)
    path = tmp_path / "run" / "result.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in old.items() if "class_accuracies" not in key}))
    (found,) = keep(tmp_path / "run", tmp_path, classes=True, device="cpu")
    content = json.loads(found.read_text())
    assert content["class_accuracies"] == list(result.class_accuracies)
    assert content["float_class_accuracies"] == list(result.float_class_accuracies)


def test_a_history_has_a_few_of_the_times_and_always_the_last():
    found = history([gates(step, 8 if step < 60 else 2) for step in range(1, 101)])
    assert len(found["part"]) == 40
    assert (found["part"][0], found["part"][-1], found["relative_bops"][-1]) == (0.01, 1.0, 100.0)
    assert [found["bits"]["a.weight"][place] for place in (0, 22, 25, -1)] == [8, 8, 2, 2]
    assert (found["kept"]["a"][0], found["kept"]["a"][-1]) == (2, 8)
    assert found["probabilities"]["a.weight"]["4"][0] == 1.0
    assert len(history([gates(1, 8), gates(2, 4)])["part"]) == 2
    assert history([{"event": "train"}]) is None
    assert json.loads(text_of({"a": [1], "history": found}))["history"] == found


def planned(path: str, folder: Path) -> list[recipes.Recipe]:
    return [run.recipe for run in planned_runs(SweepOptions(recipes=(path,), output=folder))]


def test_the_list_of_the_evidence_has_every_target_with_three_seeds(tmp_path):
    found = planned("experiments/evidence.toml", tmp_path)
    (tmp_path / "resnet20.th").touch()
    weights = [f"model.checkpoint={tmp_path / 'resnet20.th'}"]  # it has a command of its own, in the comment
    found += [
        recipes.load("cifar10-resnet20-distilled", [*weights, f"seed={seed}"], budget="1.5% bops") for seed in range(3)
    ]
    runs = {(name_of(recipe), recipe.seed) for recipe in found}
    targets = tomllib.loads(Path("experiments/targets.toml").read_text())["targets"]
    assert len(targets) == 12
    for target in targets:
        assert {(target["search"], seed) for seed in range(3)} <= runs, target
    assert all(recipe.search.distillation == 0.5 for recipe in found if recipe.search.budget is not None)
    assert all(recipe.name.endswith("-distilled") for recipe in found if recipe.search.budget is not None)


def test_ablations_are_at_one_cost_each_differs_and_has_a_name_of_its_own(tmp_path):
    found = planned("experiments/ablations.toml", tmp_path)
    assert {recipe.seed for recipe in found} == {0, 1, 2}
    assert {(recipe.model.name, str(recipe.search.budget)) for recipe in found} == {
        ("vgg7", "0.45% bops"),
        ("resnet18", "0.5% bops"),
    }
    first = [recipe for recipe in found if recipe.seed == 0]
    assert len({name_of(recipe) for recipe in first}) == len({recipe.description for recipe in first}) == len(first)
    assert {method_of(recipe.spec) for recipe in first} == {
        "bayesian_bits", "bayesian_bits_quantization_only", "bayesian_bits_pruning_only",
    }  # fmt: skip
    penalties = {recipe.spec.penalty for recipe in first}
    assert penalties == {"paper", "expected_bops", "variational"}
    assert {recipe.spec.residual_bits for recipe in first if recipe.model.name == "resnet18"} == {None, 8, "learned"}


def test_levers_are_judged_by_images_held_back_and_differ_in_one_thing_each(tmp_path):
    found = planned("experiments/levers.toml", tmp_path)
    assert len({(name_of(recipe), recipe.seed) for recipe in found}) == len(found)
    held_back = {"cifar10-resnet18-distilled": 5000, "fashion-lenet5-distilled": 10000}
    assert all(recipe.data.validation == held_back[recipe.name] for recipe in found)
    for base in held_back:
        first, *others = (recipe for recipe in found if recipe.name == base and recipe.seed == 0)
        assert len(others) == 4
        for recipe in others:
            changed = set(changes(recipe)) ^ set(changes(first)) | {
                key for key, value in changes(recipe).items() if changes(first).get(key, value) != value
            }
            assert len({key.split(".")[0] if key.startswith("finetune") else key for key in changed}) == 1, changed


@pytest.mark.check
@pytest.mark.parametrize("path", [f"experiments/{name}.toml" for name in ("evidence", "ablations", "levers")])
def test_every_listed_run_can_start(path, tmp_path):
    """The network is built and attached to, and its budget can be reached; nothing is trained."""
    seen = set()
    for recipe in planned(path, tmp_path):
        key = (recipe.model.name, repr(recipe.spec), str(recipe.search.budget))
        if key in seen:
            continue
        seen.add(key)
        model = build_model(recipe.model.name, recipe.model.options, 10)[0]
        shape = (1, 28, 28) if recipe.model.name == "lenet5" else (3, 32, 32)
        compressor = bb.attach(model, torch.zeros(2, *shape), recipe.spec)
        if recipe.search.budget is not None:
            check_reachable(compressor.attachment, recipe.search.budget)
        if recipe.description.endswith("at 4/8"):
            bits = compressor.plan().bits
            assert {bits[name] for name in bits if name.endswith(".weight")} == {4}
            assert {bits[name] for name in bits if name.endswith(".input")} == {8}


@pytest.mark.parametrize("name", ["run time 4/8", "weights alone, 4 bits, level 4"])
def test_files_at_run_time_and_of_weights_alone_are_written_and_verified(name, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    write_ours(name, model, {"input": torch.randn(4, 40)}, tmp_path / "network.onnx")
    assert (tmp_path / "network.onnx").is_file()
    assert type(model[0]) is nn.Linear  # detached again
    assert name in OURS


def test_there_are_sentences_to_embed():
    assert len(sentences()) == SENTENCES
    assert all(40 < len(one) < 200 for one in sentences())


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")
def test_a_transformer_passes_every_stage_at_two_lengths(tmp_path):
    row = run_stages("DistilBERT", tmp_path)
    assert row["passed"], row
    assert row["sizes"] == ["any batch", "length of 1 to 64"]
    assert row["verified"] == ["3x16", "2x8"]
    assert row["returns"] == "SequenceClassifierOutput"


def test_in_the_record_of_transformers_all_networks_pass_or_are_refused_with_a_way_out():
    rows = json.loads(TRANSFORMERS.read_text())["networks"]
    assert list(rows) == list(NETWORKS)
    refused = {name: row["error"] for name, row in rows.items() if not row["passed"]}
    assert set(refused) == {"Mixtral", "EnCodec's encoder"}
    assert "model.layers.0.mlp.experts" in refused["Mixtral"]
    assert "batched_mm" in refused["Mixtral"]
    assert all(row["products"]["passed"] and row["products"]["integer"] > 95 for row in rows.values() if row["passed"])
    assert all(len(row["verified"]) == 2 for row in rows.values() if row["passed"])


@pytest.mark.filterwarnings("ignore")
def test_a_network_that_cannot_be_taken_is_refused_with_the_reason(tmp_path):
    row = run_stages("EnCodec's encoder", tmp_path)
    assert (row["passed"], row["stage"]) == (False, "attach")
    assert row["error"].startswith("ValueError: nothing of EncodecEncoder can be quantized: layers.0.conv, layers.1.")
    assert 'remove_parametrizations(module, "weight")' in row["error"]
