"""The tables of other methods: means over seeds, and ours at the cost of fixed widths."""

from docs.method_tables import learned_beside_fixed, methods
from tests.docs.kept import write


def test_methods_are_means_over_seeds_beside_ours_and_published_points(tmp_path):
    shared = {
        "setting": "plain", "epochs": 3, "relative_bops_8_bit_ends": None, "seconds_an_epoch": 2.5,
        "device": "a device", "deployed": "8 of 8 layers", "command": "first",
    }  # fmt: skip
    rows = [
        shared | {"row": "LSQ 4/4", "seed": seed, "accuracy": 90.0 + seed, "relative_bops": 1.5} for seed in range(3)
    ]
    rows += [
        shared | {"row": "LSQ 2/2", "seed": 0, "accuracy": 89.0, "relative_bops": 0.4, "command": "second"},
        shared | {"row": "LSQ 4/4", "seed": 0, "accuracy": 95.0, "relative_bops": 1.5, "setting": "tricks"}
        | {"deployed": "no: why", "relative_bops_8_bit_ends": 0.5},
        shared | {"row": "Bayesian Bits mu=0.1", "seed": 0, "accuracy": 92.0, "relative_bops": 0.5},
        shared | {"row": "Bayesian Bits mu=0.01", "seed": 0, "accuracy": 93.0, "relative_bops": 1.5},
        shared | {"row": "Bayesian Bits mu=0.001", "seed": 0, "accuracy": 99.0, "relative_bops": 1.6},
        shared | {"row": "Bayesian Bits mu=0.1", "seed": 0, "accuracy": 99.5, "relative_bops": 0.3, "epochs": 9},
        shared | {"row": "Bayesian Bits mu=0.1", "seed": 0, "accuracy": 92.0, "relative_bops": 0.3, "epochs": 7}
        | {"outdated": "its gates"},
        shared | {"row": "TWN", "seed": 0, "accuracy": 90.0, "relative_bops": 0.4, "epochs": 7},
        shared | {"row": "TWN", "seed": 1, "accuracy": 10.0, "relative_bops": 0.4, "epochs": 7, "outdated": "why"},
        shared | {"row": "DQ", "seed": 0, "accuracy": 91.0, "relative_bops": 0.6, "outdated": "its widths return"}
        | {"device": "x86_64 (cpu)", "seconds_an_epoch": 30.25},
    ]  # fmt: skip
    write(tmp_path, methods_mnist_lenet5={"rows": rows})
    (table,) = methods(tmp_path)
    assert (table.title, table.commands) == ("Recipe mnist-lenet5", ["first", "second"])
    found = {(row["method"], row["setting"], row["epochs"]): row for row in table.rows}
    assert table.notes == [
        "\\* Bayesian Bits mu=0.1: its gates", "\\* DQ: its widths return", "Device: a device, x86_64 (cpu)",
    ]  # fmt: skip
    twn = found["TWN", "plain", 7]
    assert (twn["accuracy"], twn["seeds"]) == ("90.00%", "1 seed")  # the one of before the change is left out
    assert twn["ours at no more cost"] == "not run"  # ours is of before a change, too
    assert found["DQ \\*", "plain", 3]["seconds an epoch"] == "30.25 (CPU)"
    lsq = found["LSQ 4/4", "plain", 3]
    assert (lsq["accuracy"], lsq["seeds"], lsq["with 8-bit ends"]) == ("91.00 ± 0.58%", "3 seeds", "")
    assert lsq["ours at no more cost"] == "93.00% at 1.500%"  # neither a dearer one nor one with more epochs
    assert found["LSQ 2/2", "plain", 3]["ours at no more cost"] == "-"
    tricks = found["LSQ 4/4", "tricks", 3]
    assert (tricks["accuracy"], tricks["in integers"], tricks["with 8-bit ends"]) == ("95.00%", "no", "0.500%")
    assert (lsq["in integers"], lsq["seconds an epoch"]) == ("8 of 8 layers", "2.5")
    assert tricks["ours at no more cost"] == "not run"
    assert found["Bayesian Bits mu=0.1", "plain", 3]["ours at no more cost"] == ""
    published = found["WAGE 2/8 (other work)", "", ""]
    assert (published["accuracy"], published["bit operations"]) == ("99.60%", "1.56%")


def test_ours_at_the_cost_of_fixed_widths_is_compared_seed_by_seed(tmp_path):
    def row(name, seed, accuracy, **options):
        shared = {"row": name, "setting": "tricks", "epochs": 60, "seed": seed, "accuracy": accuracy}
        return shared | {"relative_bops": 0.4} | options

    ours = "Bayesian Bits at the cost of LSQ 2/2"
    rows = [
        *(row("LSQ 2/2", seed, 93.0 + seed) for seed in (0, 1)), row("LSQ 2/2", 0, 80.0, setting="plain"),
        row("LSQ 2/2", 3, 10.0), row("LSQ 8/8", 0, 95.0, outdated="its steps"),  # none of ours with seed 3
        row("Bayesian Bits at the cost of LSQ 8/8", 0, 94.0),
        # none of LSQ with seed 2
        *(row(ours, seed, accuracy, relative_bops=0.3) for seed, accuracy in ((0, 93.2), (1, 94.6), (2, 99.0))),
        row(ours, 0, 90.0, epochs=300), row("Bayesian Bits mu=0.1", 0, 90.0),
        row("LSQ 4/4", 0, 95.0), row("Bayesian Bits at the cost of LSQ 4/4", 0, 94.5, outdated="its gates"),
    ]  # fmt: skip
    (found,) = learned_beside_fixed(write(tmp_path, methods_cifar10_vgg7={"rows": rows}))
    assert found == {
        "network": "VGG-7 on CIFAR-10", "setting": "tricks", "epochs": 60, "seeds": "2 seeds",
        "fixed widths": "LSQ 2/2",
        "their cost": "0.400 ± 0.000%", "their accuracy": "93.50 ± 0.50%",
        "our cost": "0.300 ± 0.000%", "our accuracy": "93.90 ± 0.70%",
        "difference, points": "+0.40 ± 0.20",
    }  # fmt: skip


def test_the_kept_results_are_on_the_page():
    assert {"LSQ 2/2", "LSQ 4/4"} <= {row["method"].rstrip(" \\*") for table in methods() for row in table.rows}
    compared = {(row["network"], row["fixed widths"], row["setting"]): row for row in learned_beside_fixed()}
    assert compared["VGG-7 on CIFAR-10", "LSQ 2/2", "tricks"]["seeds"] == "3 seeds"
