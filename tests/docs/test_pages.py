"""The code in the documentation runs, its commands exist, its links lead somewhere, and its figures are the files'."""

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch

from docs import picture, readme, screenshots
from docs.results import tables

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^( *)```(\S+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)

READERS_OWN = """
model = models.create("lenet5")
compressor = bb.attach(model, images[:1])
loader, loss_fn = [(images, labels)], torch.nn.functional.cross_entropy
"""


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language in a page; those that are only shown are `{code-block}` and are left out."""
    return [text for _, found, text in BLOCK.findall(page.read_text()) if found == language]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.check
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_code_runs(page, tmp_path, monkeypatch):
    """All blocks of a page run one after the other; a block that begins with "# mine.py" is written there."""
    found = blocks(page, "python")
    if page.name == "README.md":
        found = [found[0].replace("range(300)", "range(3)"), READERS_OWN, found[1].replace("epochs=20", "epochs=2")]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    with warnings.catch_warnings(action="ignore"):
        for text in found:
            if not text.startswith("# mine.py"):
                exec(compile(text, name(page), "exec"), names)


@pytest.mark.check
def test_own_data_by_the_command_line(tmp_path):
    page = ROOT / "docs" / "tutorials" / "own_data.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0])
    commands = [line for text in blocks(page, "bash")[:2] for line in text.splitlines()]
    assert len(commands) == 4
    for command in commands:
        run([sys.executable, "-m", *shlex.split(command)], tmp_path)
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


@pytest.mark.check
def test_commands_and_their_options_exist():
    for page in PAGES:
        lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
        for line in lines + re.findall(r"`(bayesbits [a-z][^`]*)`", page.read_text()):
            words = shlex.split(line.partition(" #")[0])
            if "bayesbits" not in words:
                continue
            command, *rest = words[words.index("bayesbits") + 1 :]
            for option in (word for word in rest if word.startswith("--")):
                assert option in options_of(command), f"{name(page)}: bayesbits {command} has no {option}"
            assert options_of(command), f"{name(page)}: there is no bayesbits {command}"


@cache
def options_of(command: str) -> frozenset[str]:
    output = run([sys.executable, "-m", "bayesbits", command, "--help"], ROOT, COLUMNS="200", TERM="dumb", NO_COLOR="1")
    return frozenset(re.findall(r"--[a-z-]+", output))


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_files_that_pages_name_exist():
    kinds = r"(?:src|tests|docs|examples|experiments|benchmarks)/[\w/.-]+\.(?:py|md|json|svg)"
    for page in PAGES:
        text = page.read_text().partition("<!-- The tree")[0]
        for target in re.findall(rf"`({kinds})`", text):
            if "/x.py" not in target and "_x.py" not in target:
                assert (ROOT / target).exists(), f"{name(page)} names {target}"


def test_the_pictures_are_those_of_the_results():
    assert picture.PICTURE.read_text() == picture.draw(json.loads(picture.RESULT.read_text())), "python -m docs.picture"
    assert picture.PARETO.read_text() == picture.draw_pareto(), "python -m docs.picture"


def test_a_table_of_targets_takes_the_place_of_the_one_in_the_text():
    text = readme.with_table("above\n\n| network | target |\n| --- | --- |\n| old | row |\n\nbelow | here\n")
    assert text.startswith("above\n\n| network | target | float |")
    assert text.endswith("|\n\nbelow | here\n")
    assert "| old |" not in text
    with pytest.raises(ValueError, match="has 0 tables"):
        readme.with_table("no table")


def test_screenshots_are_there_small_and_on_a_page():
    pages = "\n".join(page.read_text() for page in PAGES)
    for one in screenshots.PICTURES:
        path = screenshots.IMAGES / f"{one.name}.png"
        assert f"images/{path.name})" in pages, path.name
        assert 0 < path.stat().st_size < 150_000


def test_every_table_of_results_is_shown_and_no_other():
    pages = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"\{\{ (\w+) \}\}", pages)) == tables().keys()


def test_the_figures_in_the_readme_are_those_of_the_records():
    text = (ROOT / "README.md").read_text()
    assert readme.with_table(text) == text, "run `python -m docs.readme`"
    assert "| reached |" in text
    cost = text[text.index("## What it costs") : text.index("## Documentation")]
    for device in ("h200", "cpu"):
        record = json.loads((ROOT / "benchmarks" / "results" / f"training-{device}.json").read_text())
        for row in record["tables"]["training"]:
            if row["what"] in ("bayesbits", "fake-quantization"):
                memory = f", {row['memory / float']:.2f} |" if device == "h200" else ""
                assert f" {row['time / float']:.2f}{memory}" in cost.replace("\n", " "), row
