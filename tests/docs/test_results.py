"""The tables of results: which points count, and how rows become Markdown."""

import re
from pathlib import Path
from xml.etree import ElementTree

from docs.evidence import Table
from docs.results import best_within, front, markdown, tables, with_commands


def test_the_best_point_within_a_cost_is_the_most_accurate_one_that_costs_no_more():
    points = [
        {"relative_bops": 1.0, "accuracy": 80.0},
        {"relative_bops": 2.0, "accuracy": 90.0},
        {"relative_bops": 2.5, "accuracy": 85.0},
        {"relative_bops": 4.0, "accuracy": 95.0},
    ]
    assert [best_within(points, cost) for cost in (0.5, 1.0, 2.0, 3.9, 4.0)] == [None, 80.0, 90.0, 90.0, 95.0]


def test_rows_become_a_table():
    assert markdown([{"a": 1, "b": "x"}, {"a": 2.5, "b": ""}]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2.5 |  |"


def test_a_front_is_the_mean_over_seeds_and_a_dash_where_a_seed_has_no_point():
    lines = front("posttrain-resnet20-adaround", (2.71, 1.8)).splitlines()
    assert lines[2] == "| 2.71 | 89.54 | 89.59 | 90.86 | 90.67 | 91.21 |"
    assert lines[3] == "| 1.8 | 82.71 | - | 88.81 | 87.60 | 90.79 |"


def test_everything_that_the_page_names_is_made_and_figures_are_whole():
    made = tables()
    named = re.findall(r"{{ (\w+) }}", Path("docs/results.md").read_text())
    assert sorted(named) == sorted(made)
    drawn = {name: re.findall(r"<svg.*?</svg>", text, re.DOTALL) for name, text in made.items() if "{raw} html" in text}
    assert drawn.keys() >= {
        "pareto_mnist",
        "pareto_cifar10",
        "layers",
        "gates",
        "decomposition",
        "classes",
        "front_plot",
    }
    for name, (svg,) in drawn.items():
        root = ElementTree.fromstring(svg)
        width, height = map(float, root.get("viewBox").split()[2:])
        for one in root.iter():
            x, y = float(one.get("x") or 0), float(one.get("y") or 0)
            assert 0 <= x <= width, (name, one.attrib)
            assert 0 <= y <= height, (name, one.attrib)


def test_a_table_without_rows_says_so():
    assert with_commands(Table("a", [], [], [])) == "None has been kept yet."
    found = with_commands(Table("a", [{"a": 1}], ["behind"], ["bayesbits search a", "bayesbits search b"]))
    assert found.splitlines()[-6:] == ["- behind", "", "```bash", "bayesbits search a", "bayesbits search b", "```"]
