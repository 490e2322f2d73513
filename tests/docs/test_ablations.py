"""The table of ablations fills itself from the results of its list."""

from docs.ablations import ablation_rows, planned
from tests.docs.kept import result, write


def test_what_has_run_is_compared_with_the_first_row_of_its_network(tmp_path):
    whole, other = "cifar10-vgg7-distilled", "cifar10-resnet18-distilled"
    write(
        tmp_path,
        cifar10_vgg7_distilled_40epochs_float__epochs_50_budget0__45_seed0=result(whole, 93.0),
        cifar10_vgg7_distilled_40epochs_float__epochs_50_budget0__45_seed1=result(whole, 94.0, seed=1),
        cifar10_resnet18_distilled_budget0__50_seed0=result(other, 95.0),
        cifar10_vgg7_distilled_40epochs_distillation_0__0_float__epochs_50_budget0__45_seed0=result(whole, 92.0),
        cifar10_vgg7_distilled_40epochs_distillation_0__0_float__epochs_50_budget0__45_seed1=result(
            whole, 94.0, seed=1
        ),
        cifar10_vgg7_distilled_40epochs_prune_false_float__epochs_50_budget0__45_seed0=result(
            whole, 93.0, float_accuracy=94.5
        ),
    )
    (tmp_path / "cifar10-resnet18-distilled-residual_bits-8-budget0.50-seed0.json").write_text(
        (tmp_path / "cifar10-resnet18-distilled-budget0.50-seed0.json").read_text().replace("95.0", "94.5")
    )
    rows = {row["what is changed"]: row for row in ablation_rows(tmp_path)}
    assert (rows["VGG-7, everything"]["accuracy"], rows["VGG-7, everything"]["points"]) == ("93.50 ± 0.50%", "")
    assert rows["without distillation"]["points"] == "-0.50 ± 1.12"
    assert rows["VGG-7, everything"]["float"] == ""
    assert rows["quantization only"]["float"] == "94.50%"
    assert rows["without learned ranges"]["accuracy"] == "not run"
    assert rows["without learned ranges"]["float"] == ""
    assert rows["ResNet-18, operands of additions at 8 bits"]["points"] == "-0.50"
    assert rows["ResNet-18, operands of additions at 8 bits"]["seeds"] == "1 seed"


def test_without_the_first_row_there_is_no_difference(tmp_path):
    write(
        tmp_path,
        cifar10_vgg7_distilled_40epochs_distillation_0__0_float__epochs_50_budget0__45_seed0=result(
            "cifar10-vgg7-distilled", 92.0
        ),
    )
    row = next(row for row in ablation_rows(tmp_path) if row["what is changed"] == "without distillation")
    assert (row["accuracy"], row["points"]) == ("92.00%", "")
    assert len(planned()) == 14
