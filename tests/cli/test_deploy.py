"""From the folder of a run to files that run in integers, on the command line."""

from types import SimpleNamespace

import pytest
import torch

import bayesbits as bb
from bayesbits.cli import deploy
from bayesbits.records.bench import Bench
from bayesbits.records.tensor_statistics import TensorStatistics
from bayesbits.utils import optional_packages
from tests.cli.invoke import SHORT, bayesbits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run of a few steps."""
    place = tmp_path_factory.mktemp("run") / "digits"
    bayesbits("search", "digits-lenet5", *SHORT, "--set", "spec.bits=[4, 8]", "--device", "cpu", "--output", place)
    return place


def test_a_run_is_exported_verified_and_measured(folder):
    assert "parameters" in bayesbits("export", folder).output
    assert (folder / "fast.onnx").stat().st_size >= (folder / "compact.onnx").stat().st_size
    assert isinstance(bb.load(folder / "deployed"), bb.DeployedNetwork)
    statistics = TensorStatistics.load(folder / "statistics.json")
    assert [one.name for one in statistics.deployed] == [one.name for one in statistics.layers]
    assert statistics.deployed_output == pytest.approx(statistics.output, abs=0.2)
    (folder / "statistics.json").unlink()  # as in a run of an earlier version
    assert "integer kernels    4 of 4 layers" in bayesbits("verify", folder, "--num-examples", 32).output
    assert bb.Verification.load(folder / "verification.json").simulated.inputs == 32
    assert TensorStatistics.load(folder / "statistics.json") == statistics
    bayesbits("report", folder, "--measure")
    assert TensorStatistics.load(folder / "statistics.json") == statistics
    measured = bayesbits("bench", folder, "--rounds", 1).output
    assert "times float" in measured
    assert "onnxruntime: 4 of 4 layers in integers" in measured
    assert "openvino: 4 of 4 layers in integers" in measured
    bench = Bench.load(folder / "bench.json")
    assert [one.name for one in bench.files] == ["float", "fast", "compact", "openvino float", "openvino qdq"] * 4
    assert "onnxruntime" in bench.runtime
    assert "openvino" in bench.runtime
    assert {one.threads for one in bench.files} == {1, None}
    assert {one.layer for one in bench.layers} >= {"features.0", "features.3", "classifier.3"}
    bayesbits("report", folder)
    assert "Latency, measured" in (folder / "report.html").read_text()


def test_errors_that_cannot_be_measured_are_said_and_stop_nothing(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(deploy, "measure_deployed_errors", fail)
    TensorStatistics(1, (), ()).save(tmp_path / "statistics.json")
    data = SimpleNamespace(test=[(torch.ones(1), None)])
    deploy.measure_errors(SimpleNamespace(compressor=None, loaders=data), None, tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert "could not be measured (RuntimeError: no such layer); the report goes without them" in said
    assert TensorStatistics.load(tmp_path / "statistics.json").deployed == ()


def test_openvino_runs_the_portable_file_of_a_run(folder):
    told = bayesbits("verify", folder, "--num-examples", 32, "--runtime", "openvino").output
    assert "integer kernels    4 of 4 layers" in told
    assert "steps at most" in told
    assert bb.Verification.load(folder / "openvino.json").machine.runtime.startswith("openvino")
    assert (folder / "qdq.onnx").exists()
    assert "it is one of onnxruntime, openvino" in bayesbits("verify", folder, "--runtime", "trt", code=1).stderr


def test_without_openvino_the_files_of_onnxruntime_are_measured(folder, monkeypatch):
    found = optional_packages.find_spec
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: None if name == "openvino" else found(name))
    told = bayesbits("bench", folder, "--rounds", 1)
    assert 'pip install "bayesbits[openvino]"' in told.stderr
    assert [one.name for one in Bench.load(folder / "bench.json").files] == ["float", "fast", "compact"] * 4
    told = bayesbits("verify", folder, "--runtime", "openvino", code=1).stderr
    assert 'install with: pip install "bayesbits[openvino]"' in told


def test_a_form_that_cannot_hold_the_network_is_left_out(folder, monkeypatch):
    monkeypatch.setattr(deploy, "refusal", lambda network, form: "it has groups" if form == "qdq" else None)
    (folder / "qdq.onnx").write_text("that of an earlier network")
    told = bayesbits("export", folder)
    assert "qdq.onnx was not written: it has groups" in " ".join(told.stderr.split())
    assert (folder / "compact.onnx").exists()
    assert not (folder / "qdq.onnx").exists()
    assert "it has groups" in bayesbits("verify", folder, "--runtime", "openvino", code=1).stderr
    assert "OpenVINO was not timed: it has groups" in bayesbits("bench", folder, "--rounds", 1).stderr
    assert [one.name for one in Bench.load(folder / "bench.json").files] == ["float", "fast", "compact"] * 4


def test_a_failed_verification_is_said_kept_and_shown(folder, monkeypatch):
    def deploy_wrongly(compressor):
        small = bb.deploy(compressor)
        small.integer.tensors["classifier.3.bias"][0] += 1
        return small

    monkeypatch.setattr(deploy, "deploy", deploy_wrongly)
    said = " ".join(bayesbits("verify", folder, "--num-examples", 32, code=1).output.split())
    assert "not equal: classifier.3: bias differs in 1 of 10 values" in said
    assert "unexpected" not in said
    assert "fast.onnx is not proven equal; the findings are in" in said
    found = bb.Verification.load(folder / "verification.json")
    assert found.failure is not None
    assert found.failure.startswith("classifier.3: bias differs")
    bayesbits("report", folder)
    assert "The verification failed" in (folder / "report.html").read_text()


def test_an_old_verification_does_not_outlive_one_that_dies(folder, monkeypatch):
    (folder / "verification.json").write_text("{}")
    monkeypatch.setattr(deploy, "verify", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
    assert "no memory" in bayesbits("verify", folder, "--num-examples", 2, code=1).output
    assert not (folder / "verification.json").exists()


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert "holds no finished run" in bayesbits("verify", tmp_path, code=1).output


def test_packages_that_the_end_needs_are_asked_for_at_the_start(here, monkeypatch):
    monkeypatch.setattr(
        optional_packages, "find_spec", lambda name: None if name in ("onnx", "onnxruntime", "sklearn") else name
    )
    told = bayesbits("demo", code=1).stderr.replace("\n", " ")
    assert "bayesbits demo needs onnx, onnxruntime, scikit-learn" in told
    assert 'install with: pip install "bayesbits[onnx,data]"' in told
    assert not (here / "runs").exists()
    assert 'pip install "bayesbits[onnx]"' in bayesbits("verify", "run", code=1).stderr
