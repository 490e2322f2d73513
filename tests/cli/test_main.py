"""The command line as a whole: help, version, completion, errors and exit codes."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import bayesbits as bb
from bayesbits.cli.main import app
from tests.cli.invoke import bayesbits

HEAVY = ("torch", "numpy", "onnx", "onnxruntime", "safetensors", "jinja2")
CALL = f"""
import sys
from bayesbits.cli.main import main
try:
    main()
finally:
    print("imported:", [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def fresh_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", CALL, *arguments],
        capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["posttrain", "--help"], ["search"], ["sweep"]])
def test_help_version_and_wrong_usage_import_nothing_heavy(arguments):
    process = fresh_process(*arguments)
    assert process.returncode == (2 if arguments in (["search"], ["sweep"]) else 0), process.stderr
    assert "imported: []" in process.stderr


def test_a_shell_completes_commands_and_recipes():
    """As bash asks: the words of the line, and which of them is completed."""
    for words, place, expected in (("bayesbits sea", 1, "search"), ("bayesbits search digits", 2, "digits-lenet5")):
        process = fresh_process(
            _BAYESBITS_COMPLETE="complete_bash", _TYPER_COMPLETE_ARGS=words, COMP_WORDS=words, COMP_CWORD=str(place)
        )
        assert expected in process.stdout.split(), process.stderr
        assert "imported: []" in process.stderr


def test_the_version_and_the_help():
    assert bayesbits("--version").stdout == f"bayesbits {bb.__version__}\n"
    assert "--install-completion" in bayesbits("--help").stdout
    assert "--resume" in bayesbits("search", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["search"], 2, "give a recipe, or both --model and --data"),
        (["serch"], 2, "No such command"),
        (["inspect", "lenet5", "--input-shape", "3x"], 2, "is not a shape"),
        (["search", "digit-lenet5"], 1, "did you mean 'digits-lenet5'?"),
        (["search", "digits-lenet5", "--set", "search.epoch=3"], 1, "did you mean search.epochs?"),
        (["search", "mnist-lenet5"], 1, "--set data.folder=FOLDER"),
        (["search", "imagenet-resnet18"], 1, "--set model.checkpoint=FILE"),
        (["search", "digits-lenet5", "--device", "abacus"], 1, "the device 'abacus' cannot be used"),
        (["inspect", "lenet"], 1, "the zoo has no network named 'lenet'"),
        (["inspect", "lenet5", "--set", "stem=cifar"], 1, "the network 'lenet5' does not take these options"),
        (["plan", "nowhere"], 1, "nowhere holds no finished run: there is no plan.json"),
        (["report", "nowhere"], 1, "nowhere holds no finished run: there is no result.json"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(arguments, code, said, monkeypatch):
    monkeypatch.delenv("BAYESBITS_DATA", raising=False)
    result = bayesbits(*arguments, code=code)
    assert said in " ".join(result.stderr.replace("│", "").split())


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(app, ["--debug", "plan", "nowhere"])
    assert isinstance(result.exception, FileNotFoundError)


def test_what_nobody_expected_is_said_to_be_unexpected(monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("inner part")

    monkeypatch.setattr("bayesbits.cli.search.run", broken)
    result = bayesbits("search", "digits-lenet5", code=1)
    assert "unexpected error: KeyError: 'inner part'" in result.stderr
    assert "--debug" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "resnet20", "--input-shape", "1x32x32"], "cannot be run on an example of shape 1x32x32: Given"),
        (["inspect", "lenet5", "--input-shape", "1x8x8"], "lenet5 was made for 1x28x28"),
        (
            ["search", "digits-lenet5", "--set", "search.lr=1"],
            "did you mean search.gates.lr or search.ranges.lr or",
        ),
        (["search", "digits-lenet5", "--set", "search.gates.rate=1"], "did you mean search.gates.lr?"),
        (["search", "digits-lenet5", "--set", "search.batch_size=1"], "did you mean data.batch_size?"),
    ],
)
def test_errors_suggest_what_was_meant(arguments, said):
    told = bayesbits(*arguments, code=1).stderr
    assert said in told
    assert "unexpected" not in told
