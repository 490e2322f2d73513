"""From the folder of a run to files that run in integers, on the command line."""

import pytest
from typer.testing import CliRunner

import bayesbits as bb
from bayesbits.cli import demo, deployed
from bayesbits.cli.main import app
from tests.recipes.made_data import SHORT_DIGITS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run of a few steps."""
    place = tmp_path_factory.mktemp("run") / "digits"
    settings = [part for override in (*SHORT_DIGITS, "spec.bits=[4, 8]") for part in ("--set", override)]
    call("search", "digits-lenet5", *settings, "--device", "cpu", "--out", place)
    return place


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_run_is_exported_verified_and_measured(folder):
    assert "parameters" in call("export", folder)
    assert (folder / "fast.onnx").stat().st_size >= (folder / "compact.onnx").stat().st_size
    assert isinstance(bb.load(folder / "deployed"), bb.DeployedNetwork)
    assert "integer kernels    4 of 4 layers" in call("verify", folder, "--inputs", 32)
    assert bb.Verification.load(folder / "verification.json").simulated.inputs == 32
    assert "times float" in call("bench", folder, "--rounds", 1)


def test_a_failed_verification_is_said_kept_and_shown(folder, monkeypatch):
    def deploy_wrongly(compressor):
        small = bb.deploy(compressor)
        small.integer.tensors["classifier.3.bias"][0] += 1
        return small

    monkeypatch.setattr(deployed, "deploy", deploy_wrongly)
    said = " ".join(call("verify", folder, "--inputs", 32, code=1).split())
    assert "not equal: classifier.3: bias differs in 1 of 10 places" in said
    assert "unexpected" not in said
    assert "fast.onnx is not proven; what was found is in" in said
    found = bb.Verification.load(folder / "verification.json")
    assert found.failure is not None
    assert found.failure.startswith("classifier.3: bias differs")
    call("report", folder)
    assert "The verification failed" in (folder / "report.html").read_text()


def test_an_old_verification_does_not_outlive_one_that_dies(folder, monkeypatch):
    (folder / "verification.json").write_text("{}")
    monkeypatch.setattr(deployed, "verify_file", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
    assert "no memory" in call("verify", folder, "--inputs", 2, code=1)
    assert not (folder / "verification.json").exists()


def test_the_page_of_a_demo_is_written_where_the_proof_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise bb.VerificationError("something differs")

    finished = []
    monkeypatch.setattr(demo, "run_with_way_on", lambda *_, **__: "result")
    monkeypatch.setattr(demo, "show", lambda result: None)
    monkeypatch.setattr(demo, "finish", lambda result, folder: finished.append((result, folder)))
    monkeypatch.setattr(demo, "verify", fail)
    assert "something differs" in call("demo", "--out", tmp_path, code=1)
    assert finished == [("result", tmp_path)]


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert "holds no finished run" in call("verify", tmp_path, code=1)
