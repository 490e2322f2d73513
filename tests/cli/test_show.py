"""What is shown without training: recipes, networks and plans, on narrow terminals too."""

from rich.console import Console

from bayesbits import recipes
from bayesbits.cli import show
from tests.cli.invoke import bayesbits


def test_the_recipes_are_listed():
    output = bayesbits("recipes").stdout
    assert all(name in output for name in recipes.names())


def test_a_network_is_inspected_before_any_training():
    output = bayesbits("inspect", "lenet5").stdout
    assert "features.3" in output
    assert "3,276,800" in output
    assert "classifier.3: all 10 channels stay: reaches the network's output" in output
    assert "6.25%" in output
    assert "4 layers" in output
    small = bayesbits("inspect", "resnet20", "--input-shape", "3x16x16", "--set", "num_classes=4").stdout
    assert "4 x 64" in small


def test_a_recipe_is_inspected_with_what_its_spec_attaches():
    output = bayesbits("inspect", "digits-vit").stdout
    assert "10 layers and 4 products of two activations" in output
    assert "blocks.0.attention.sdpa.scores" in output
    assert "operands of products" in output
    assert "attention product) stays in float" not in output
    plain = bayesbits("inspect", "vit").stdout
    assert "10 layers  " in plain
    assert "attention product) stays in float" in plain
    assert "10 layers and 4 products" in bayesbits("inspect", "vit", "--products").stdout
    changed = bayesbits("inspect", "digits-vit", "--set", "spec.activation_products=false").stdout
    assert "attention product) stays in float" in changed


def test_a_users_network_is_inspected_by_its_shape_or_its_own_example(here):
    (here / "users_inspected.py").write_text(
        "import torch\n"
        "def bare(): return torch.nn.Linear(6, 2)\n"
        "def with_example(): return torch.nn.Linear(6, 2), torch.zeros(1, 6)\n"
    )
    shown = bayesbits("inspect", "users_inspected:bare", "--input-shape", "6").stdout
    assert "2 x 6" in shown
    assert bayesbits("inspect", "users_inspected:with_example").stdout == shown
    assert "your own network needs it" in bayesbits("inspect", "users_inspected:bare", code=2).stderr


def test_a_network_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setattr(show, "output_console", lambda: Console(width=80))
    lines = bayesbits("inspect", "resnet20").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    layers, names = [row for row in rows if len(row) == 6], {row[0] for row in rows if len(row) == 6}
    assert len(layers) == len(names) == int(lines[0].split()[0])  # no row is folded, and no name is ambiguous
    assert all(cell.strip() for row in layers for cell in row)
    assert "…" not in "".join(lines)


def test_the_narrow_form_has_the_numbers_of_the_wide_one(monkeypatch):
    monkeypatch.setattr(show, "output_console", lambda: Console(width=70))
    output = bayesbits("inspect", "lenet5").stdout
    row = next(line for line in output.splitlines() if "features.3" in line)
    # 64 x 32 x 5 x 5 weights at 8 x 8 pixels, of 4,267,008 MACs
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "features.3", "conv", "64x32x5x5", "3.28 M", "76.8%", "64/64",
    ]  # fmt: skip
