"""Tables on narrow terminals: every layer keeps a name of its own, and no number is cut."""

import io

import pytest
from rich.console import Console

from bayesbits.cli.tables import file_table, layer_table, result_table
from bayesbits.recipes import Result
from bayesbits.recipes.metrics import Score

NAMES = ["classifier.1", "classifier.3", *(f"encoder.layers.{place}.attention.self.query" for place in (10, 11))]


def row(name):
    return {
        "name": name, "weight_bits": 16, "activation_bits": 8, "kept_in": 400, "channels_in": 512, "kept_out": 1024,
        "channels_out": 2048, "macs": 123_456_789, "share": 42.5, "weight_bytes": 206_000,
    }  # fmt: skip


def shown(make, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(make(console))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_layers_keep_names_of_their_own_and_whole_numbers(width):
    lines = shown(lambda console: layer_table([row(name) for name in NAMES], console), width)
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert len(rows) == len(NAMES)  # none is folded
    assert len({cells[0] for cells in rows}) == len(NAMES)
    assert rows[0][0].strip() == "classifier.1"
    assert rows[2][0].strip().endswith(".query")
    text = "\n".join(lines)
    assert "…" not in text
    assert "206 kB" in text
    assert "400 of 512" in text or "400/512" in text


def test_metrics_are_shown_by_name_and_direction_and_little_is_not_called_1x():
    scores = (Score("MSE", 0.5, 0.25, "", False), Score("R2", 0.5, None, "", True))
    result = Result(
        "r", "m", 0.1, 0, 1, 0, 0, None, None, 99.3, 99.3, 990, 1000, [], 1.0, "cpu", {}, metrics=scores
    )  # fmt: skip
    text = "\n".join(shown(lambda _: result_table(result), 80))
    for said in ("test MSE", "+0.25, worse", "test R2", "higher is better", "0.7% fewer", "1% smaller"):
        assert said in text
    assert "accuracy" not in text
    assert "1x" not in text


def test_a_folder_in_the_list_of_files_has_the_size_of_what_is_in_it(tmp_path):
    (tmp_path / "deployed").mkdir()
    (tmp_path / "deployed/codes").write_bytes(b"0" * 12_345)
    assert "│ deployed/ │ 12.3 kB │" in "\n".join(shown(lambda _: file_table(tmp_path), 80))


def test_a_table_of_embeddings_has_bits_and_a_size_and_reads_nothing():
    row = {"name": "words", "macs": 0, "weight_bits": 4, "activation_bits": None, "kept_in": 0, "kept_out": 0}
    row |= {"channels_in": 0, "channels_out": 0, "share": 0.0, "weight_bytes": 1000}
    for width in (80, 200):
        text = "\n".join(shown(lambda console: layer_table([row], console), width))
        assert "1 kB" in text
        assert "None" not in text
        assert "4/" not in text
