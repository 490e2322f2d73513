"""Saving and loading: packed, without pickles, and damage is named."""

import hashlib
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.zoo import models
from tests.deploy.comparison import call
from tests.deploy.networks import compress, deployed
from tests.graph.networks import Residual


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "small"
    bb.save(deployed("lenet5")[1], path)
    return path


@pytest.fixture
def copied(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_what_is_loaded_computes_the_same(folder, monkeypatch):
    _, small, inputs = deployed("lenet5")

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    loaded = bb.load(folder)
    assert loaded.integer.structure == small.integer.structure
    assert torch.equal(call(loaded, inputs), call(small, inputs))
    assert loaded.state_dict().keys() == small.state_dict().keys()


@pytest.mark.parametrize("name", ["residual", "vit"])
def test_what_stays_float_is_stored_too(name, tmp_path):
    _, small, inputs = deployed(name)
    bb.save(small, tmp_path)
    assert torch.equal(call(bb.load(tmp_path), inputs), call(small, inputs))


def test_into_a_fresh_model(folder):
    _, small, inputs = deployed("lenet5")
    assert torch.equal(call(bb.load(folder, models.create("lenet5")), inputs), call(small, inputs))


def test_into_another_model(folder):
    with pytest.raises(ValueError, match=r"weight of 'classifier.3' has shape \(7, 359\), and \(10, 359\) is stored"):
        bb.load(folder, models.create("lenet5", num_classes=7))
    with pytest.raises(ValueError, match="Residual does not take these inputs"):
        bb.load(folder, Residual())
    other = models.create("lenet5")
    other.features[1] = torch.nn.GELU()
    with pytest.raises(ValueError, match="LeNet5 is not the network in"):
        bb.load(folder, other)


def test_codes_are_really_packed(folder):
    compressor = deployed("lenet5")[0]
    packed = (folder / "tensors.safetensors").stat().st_size
    header = 2000
    assert packed < compressor.cost().weight_bytes + header
    widths = {layer.weight_bits for layer in compressor.cost().layers}
    assert widths & {2, 4}


@pytest.mark.parametrize("file", ["network.json", "tensors.safetensors"])
def test_truncated_files(copied, file):
    content = (copied / file).read_bytes()
    (copied / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{file} is truncated or altered"):
        bb.load(copied)
    (copied / file).unlink()
    with pytest.raises(FileNotFoundError, match=file):
        bb.load(copied)


def test_altered_files(copied):
    content = bytearray((copied / "tensors.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "tensors.safetensors").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"tensors.safetensors is truncated or altered"):
        bb.load(copied)
    body = json.loads((copied / "network.json").read_text())
    body["structure"]["layers"][0]["output_high"] += 1
    (copied / "network.json").write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"network.json was altered"):
        bb.load(copied)


def test_a_newer_version(copied):
    body = json.loads((copied / "network.json").read_text())
    body["version"] = 3
    (copied / "network.json").write_text(json.dumps(body))
    with pytest.raises(ValueError, match="has version 3, and this library reads 2: a newer bayesbits wrote it"):
        bb.load(copied)
    (copied / "network.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a bayesbits deployed network"):
        bb.load(copied)


def test_an_older_version(copied):
    body = json.loads((copied / "network.json").read_text())
    (copied / "network.json").write_text(json.dumps({**body, "version": 1}))
    with pytest.raises(ValueError, match="has version 1, and this library reads 2: deploy and save it once more"):
        bb.load(copied)
    (copied / "network.json").write_text(json.dumps({key: body[key] for key in body if key != "version"}))
    with pytest.raises(ValueError, match="has version None, and this library reads 2: deploy and save it once more"):
        bb.load(copied)


def test_a_structure_of_another_version(copied):
    content = json.loads((copied / "network.json").read_text())
    for version, way_out in ((1, "deploy and save it once more"), (3, "a newer bayesbits wrote it")):
        content["structure"]["version"] = version
        body = {key: content[key] for key in ("structure", "graph", "parameters", "tensors")}
        content["checksum"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        (copied / "network.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"the structure in .* has version {version}, .* reads 2: {way_out}"):
            bb.load(copied)


def test_a_folder_that_was_written_before_deploy_became_a_list_of_passes():
    """Written by release 0.1.0 as it was: 4 bits, one of four channels removed, batch norm folded."""
    folder = Path(__file__).parent / "stored" / "version2"
    code = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)
    expected = [[-0.2600323557853699, -0.0850105807185173], [0.05500684678554535, 0.27503424882888794]]
    for loaded in (bb.load(folder), bb.load(folder, code)):
        assert [layer.weight_shape for layer in loaded.integer.layers] == [(3, 1, 3, 3), (2, 12)]
        torch.testing.assert_close(call(loaded, x), torch.tensor(expected), rtol=1e-6, atol=0)


def test_only_deployed_networks_are_saved(tmp_path):
    with pytest.raises(TypeError, match=r"save takes what bayesbits\.deploy returns"):
        bb.save(torch.nn.Linear(2, 2), tmp_path)


def test_a_network_of_sixteen_bits(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8)
    small = bb.deploy(compress(Residual(), inputs, bb.Spec(bits=(8, 16)), bits=(16,)))
    bb.save(small, tmp_path)
    loaded = bb.load(tmp_path)
    assert torch.equal(loaded.integer.codes("inner"), small.integer.codes("inner"))
    assert torch.equal(call(loaded, inputs), call(small, inputs))
