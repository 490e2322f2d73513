"""The commands that deploy a run pass their options to their implementations under the right names."""

from pathlib import Path

import pytest

from tests.cli.invoke import calls_of


@pytest.mark.parametrize(
    ("command", "implementation", "passed", "named"),
    [
        (["export", "x"], "deploy.run_export", [Path("x")], {}),
        (["verify", "x"], "deploy.run_verify", [Path("x"), 1000, "onnxruntime"], {}),
        (["verify", "x", "--runtime", "openvino"], "deploy.run_verify", [Path("x"), 1000, "openvino"], {}),
        (["verify", "x", "--num-examples", "9"], "deploy.run_verify", [Path("x"), 9, "onnxruntime"], {}),
        (["verify", "x", "--inputs", "9"], "deploy.run_verify", [Path("x"), 9, "onnxruntime"], {}),
        (["bench", "x"], "deploy.run_bench", [Path("x"), 20], {}),
        (["bench", "x", "--rounds", "3"], "deploy.run_bench", [Path("x"), 3], {}),
    ],
)  # fmt: skip
def test_options_reach_the_implementation(command, implementation, passed, named, monkeypatch):
    assert calls_of(implementation, command, monkeypatch) == [(passed, named)]
