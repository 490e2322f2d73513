"""Tables as plain text: aligned, without colors, as wide as they need to be or as they may be."""

import io

from rich.console import Console

from bayesbits.utils.tables import make_table, plain_text, text_table

HEAD = ("layer", "MACs", "reads")
ROWS = [("stem", "1,234", "input"), ("layer1.0.conv", "5", "[bold]stem[/bold] :smile:")]


def test_numbers_are_aligned_to_the_right_and_text_to_the_left():
    assert text_table(HEAD, ROWS, left=(0, 2)).splitlines() == [
        "layer           MACs  reads",
        "stem           1,234  input",
        "layer1.0.conv      5  [bold]stem[/bold] :smile:",
    ]


def test_only_the_first_column_is_text_unless_told():
    lines = text_table(HEAD, ROWS).splitlines()
    assert lines[1] == "stem           1,234                      input"
    assert len(lines[1]) == len(lines[2])


def test_text_is_folded_and_numbers_are_not_where_the_width_is_given():
    lines = text_table(("layer", "MACs"), [("encoder.layers.11", "1,234,567")], width=20).splitlines()
    assert lines == ["layer           MACs", "encoder.l  1,234,567", "ayers.11"]


def test_an_environment_that_wants_colors_gets_none(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "10")
    assert text_table(("layer",), [("a long name of a layer",)]) == "layer\na long name of a layer"


def test_many_columns_are_not_cut():
    cells = [f"column {index}" for index in range(60)]
    assert text_table(cells, [], left=range(60)) == "  ".join(cells)


def test_a_console_shows_the_same_table():
    table = make_table(HEAD, ROWS)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(table)
    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert printed == plain_text(table).splitlines()
