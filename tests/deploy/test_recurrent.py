"""Recurrent layers from attaching to a proven file: their weights are codes, and everything else is float."""

import copy
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.modules import TABLES, target_of
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.table_weights import read_tables
from bayesbits.deploy.verification.compare_runtime import RuntimeComparison, _terms
from bayesbits.deploy.verification.compare_tables import check_deployed_tables, check_simulated_tables, derive_tables
from bayesbits.deploy.verification.derived_constants import derive_grids, derive_layers
from bayesbits.deploy.verification.simulation import Float64Simulation, fixed_copy
from tests.nn.recurrent import Sequences, compressed, inputs


def fixed(kind: Any = nn.LSTM, bits: int = 4, *, per_channel: bool = True, **options: Any) -> bb.Compressor:
    """The network with recurrent weights of so many bits, ready to be deployed; its other weights have 8 bits."""
    compressor = compressed(kind, per_channel=per_channel, **options)
    tables = dict.fromkeys(compressor.topology.table_tensors, bits)
    compressor.fix(bb.Plan({**bb.Plan.uniform(compressor.topology, 8, 8).bits, **tables}))
    return compressor


@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "bias", "per_channel", "form"),
    [
        (nn.LSTM, 2, True, True, False, "fast"),
        (nn.GRU, 2, True, True, True, "compact"),
        (nn.LSTM, 1, False, False, True, "compact"),
        (nn.GRU, 1, False, False, False, "fast"),
    ],
)
def test_random_plans_are_deployed_written_and_proven(
    kind: Any, layers: int, bidirectional: bool, bias: bool, per_channel: bool, form: str, tmp_path: Path
) -> None:
    structure = {"num_layers": layers, "bidirectional": bidirectional, "bias": bias}
    compressor = compressed(kind, per_channel=per_channel, spec={"bits": (2, 4, 8)}, **structure)
    choose = random.Random(layers)
    plan = bb.Plan.uniform(compressor.topology, 8, 8).bits
    names = (*compressor.topology.table_tensors, "mix.weight", "head.weight")
    compressor.fix(bb.Plan({**plan, **{name: choose.choice((2, 4, 8)) for name in names}}))
    small, x = bb.deploy(compressor), inputs(7)
    with torch.no_grad():
        torch.testing.assert_close(small(x), compressor.model(x), rtol=1e-5, atol=1e-6)
    assert small.macs == compressor.topology.macs
    float_network = Sequences(kind, **structure)
    assert small.parameter_count == sum(parameter.numel() for parameter in float_network.parameters())
    path = tmp_path / "small.onnx"
    bb.export_onnx(small, inputs(), path, form=form)
    found = bb.verify(compressor, small, path, x)
    operations = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert operations.count(kind.__name__) == layers
    every = sum(parameter.numel() for parameter in float_network.parameters() if parameter.dim() > 1)
    assert found.derived.weights == found.stored.weights == every
    exact = [tensor.name for tensor in found.runtime_tensors if tensor.exact and tensor.kind == "table"]
    assert set(exact) == set(compressor.topology.table_tensors)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("bits", "dtype"), [(2, torch.int8), (8, torch.int8), (12, torch.int16)])
def test_codes_times_steps_are_the_weights_of_the_simulation(bits: int, dtype: torch.dtype, per_channel: bool) -> None:
    compressor = fixed(bits=bits, per_channel=per_channel)
    tensors = read_tables(compressor)["cell.weight_hh_l0"].tensors
    assert (tensors["codes"].dtype, tensors["codes"].shape) == (dtype, (24, 6))
    assert tensors["steps"].shape == ((24,) if per_channel else (1,))
    highest = 2 ** (bits - 1) - 1 if bits <= 8 else 2039  # the range is made for 8 bits
    assert int(tensors["codes"].abs().max()) == highest
    numbers = tensors["codes"] * tensors["steps"].reshape(-1, 1)
    with torch.no_grad():
        assert torch.equal(numbers, compressor.model.cell.quantized("weight_hh_l0"))
    small = bb.deploy(compressor)
    assert torch.equal(small.program.get_submodule(target_of(TABLES, "cell.weight_hh_l0"))(), numbers)


def test_nn_rnn_takes_the_same_way(tmp_path: Path) -> None:
    compressor, path = fixed(nn.RNN, bits=4, nonlinearity="relu", bidirectional=True), tmp_path / "small.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs(), path)
    assert bb.verify(compressor, small, path, inputs()).derived.weights == 2 * 6 * (5 + 6) + 5 * 9 + 24


def test_the_graph_reads_codes_and_keeps_no_float_weights() -> None:
    small = bb.deploy(fixed(num_layers=2))
    calls = [node for node in small.program.graph.nodes if node.op == "call_module"]
    tables = [str(node.target) for node in calls if str(node.target).startswith(TABLES)]
    names = [f"cell.weight_{one}" for one in ("ih_l0", "hh_l0", "ih_l1", "hh_l1")]
    assert sorted(tables) == sorted(target_of(TABLES, name) for name in names)
    assert [name.rpartition("/")[2] for name, _ in small.program.named_parameters()] == [
        "bias_ih_l0", "bias_hh_l0", "bias_ih_l1", "bias_hh_l1",
    ]  # fmt: skip
    assert [(table.kind, table.bits, table.macs) for table in small.integer.tables[:2]] == [
        ("recurrent", 4, 3 * 3 * 24 * 5),
        ("recurrent", 4, 3 * 3 * 24 * 6),
    ]
    rows = [line.split() for line in str(small).splitlines()]
    assert ["cell.weight_hh_l1", "float", "24x6", "4", "float", "float", "1,296"] in rows


def test_a_layer_that_runs_twice_reads_its_codes_once(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            first, state = self.cell(x)
            return self.head(first + self.cell(x.flip(0), state)[0])

    torch.manual_seed(0)
    x, path = torch.randn(3, 2, 4), tmp_path / "small.onnx"
    compressor = bb.attach(Twice().eval(), x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    small = bb.deploy(compressor)
    calls = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert calls.count(target_of(TABLES, "cell.weight_ih_l0")) == 1
    bb.export_onnx(small, x, path)
    bb.verify(compressor, small, path, x)


def test_a_weight_without_a_width_stays_in_float_beside_the_others(tmp_path: Path) -> None:
    compressor, path = fixed(bits=4), tmp_path / "small.onnx"
    bits = {name: width for name, width in compressor.plan().bits.items() if name != "cell.weight_hh_l0"}
    compressor.fix(bb.Plan(bits))
    small = bb.deploy(compressor)
    assert [table.name for table in small.integer.tables] == ["cell.weight_ih_l0"]
    assert small.macs == compressor.topology.macs
    assert small.integer.structure.other_macs == compressor.topology.macs_of["cell.weight_hh_l0"]
    bb.export_onnx(small, inputs(), path)
    bb.verify(compressor, small, path, inputs())


@pytest.mark.parametrize("bits", [2, 20])
def test_codes_are_stored_packed_and_read_again(bits: int, tmp_path: Path) -> None:
    compressor = fixed(bits=bits, bidirectional=True)
    small, x = bb.deploy(compressor), inputs()
    bb.save(small, tmp_path)
    for again in (bb.load(tmp_path), bb.load(tmp_path, Sequences(bidirectional=True))):
        assert torch.equal(again(x), small(x))
        assert again.integer.structure == small.integer.structure
    with pytest.raises(ValueError, match=r"its table 'cell.weight_ih_l0' has shape \(18, 5\), and \(24, 5\) is stored"):
        bb.load(tmp_path, Sequences(nn.GRU, bidirectional=True))


@pytest.mark.check
@pytest.mark.parametrize(("bits", "narrow"), [(2, TensorProto.INT2), (4, TensorProto.INT4)])
def test_files_are_smaller_than_the_float_one(bits: int, narrow: int, tmp_path: Path) -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(32, 64), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0])

    torch.manual_seed(0)
    model, x = Large().eval(), torch.randn(4, 2, 32)
    export_float_onnx(model, x, tmp_path / "float.onnx")
    compressor = bb.attach(model, x, bb.Spec(per_channel_weights=True))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, 8))
    small = bb.deploy(compressor)
    for form in ("fast", "compact"):
        bb.export_onnx(small, x, tmp_path / f"{form}.onnx", form=form)
    size = {path.stem: os.path.getsize(path) for path in tmp_path.glob("*.onnx")}
    elements = 3 * 64 * (32 + 64)
    assert size["float"] - size["fast"] > 2.5 * elements
    assert size["fast"] - size["compact"] > 0.9 * elements * (1 - bits / 8) - 500
    types = {one.name: one.data_type for one in onnx.load(str(tmp_path / "compact.onnx")).graph.initializer}
    assert types["cell.weight_ih_l0.weight"] == narrow
    assert not any(
        kind == TensorProto.FLOAT and "weight_" in name and "step" not in name for name, kind in types.items()
    )


def test_the_portable_form_holds_the_same_codes(tmp_path: Path) -> None:
    compressor, path = fixed(nn.GRU, bits=4), tmp_path / "small.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs(), path, form="qdq")
    found = bb.verify(compressor, small, path, inputs())
    assert found.stored.weights == found.derived.weights


@pytest.mark.parametrize("bits", [2, 8, 16, 20, 32])
def test_the_derived_weights_are_those_of_simulation_and_deployment(bits: int) -> None:
    compressor = fixed(bits=bits, bidirectional=True)
    copied = fixed_copy(compressor, compressor.plan())
    tables = derive_tables(copied, compressor.plan())
    check_simulated_tables(copied, tables)
    assert check_deployed_tables(bb.deploy(compressor), tables) == 2 * 24 * (5 + 6)


def test_the_exact_simulation_computes_with_the_derived_weights() -> None:
    compressor = fixed(nn.GRU, bits=4)
    plan = compressor.plan()
    copied = fixed_copy(compressor, plan)
    constants, tables = derive_layers(copied, plan, derive_grids(copied, plan)), derive_tables(copied, plan)
    cell = Float64Simulation(copied, constants, tables).fixed.model.cell
    assert cell.bayesbits_table.quantizers == {}
    for name in ("weight_ih_l0", "weight_hh_l0"):
        expected = torch.as_tensor(tables[f"cell.{name}"].numbers).double()
        assert torch.equal(getattr(cell, name), expected)
        assert any(weight is getattr(cell, name) for weight in cell.all_weights[0])


def test_a_simulation_that_does_not_round_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compressor = fixed(nn.GRU, bits=4)
    tables = derive_tables(compressor, compressor.plan())
    monkeypatch.setattr(type(compressor.model.cell), "forward", nn.GRU.forward)
    with pytest.raises(bb.VerificationError, match=r"cell.weight_ih_l0: \d+ of 90 numbers of the table"):
        check_simulated_tables(compressor, tables)
    compressor.model.cell = nn.GRU(5, 6, batch_first=True)
    with pytest.raises(
        bb.VerificationError, match=r"cell.weight_ih_l0: the simulation reads its rows without rounding"
    ):
        check_simulated_tables(compressor, tables)


@cache
def exported() -> tuple[bb.Compressor, bb.DeployedNetwork, bytes]:
    """A network with two directions, deployed, and its file."""
    compressor = fixed(bits=8, bidirectional=True)
    small = bb.deploy(compressor)
    with TemporaryDirectory() as folder:
        bb.export_onnx(small, inputs(), Path(folder) / "small.onnx")
        return compressor, small, (Path(folder) / "small.onnx").read_bytes()


def _change_code(model: ModelProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "cell.weight_hh_l0.weight")
    codes = numpy_helper.to_array(tensor).copy()
    codes[9, 0] += 1
    tensor.CopyFrom(numpy_helper.from_array(codes, tensor.name))


def _read_other_steps(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if "cell.weight_hh_l0.weight.step" in node.input)
    node.input[1] = "cell.weight_ih_l0.weight.step"


def _exchange_directions(model: ModelProto) -> None:
    """Both directions of the layer read the recurrent weight of the other one: codes and steps stay as they are."""
    names = ["cell.weight_hh_l0.numbers", "cell.weight_hh_l0_reverse.numbers"]
    other = dict(zip(names, names[::-1], strict=True))
    for node in model.graph.node:
        node.input[:] = [other.get(name, name) for name in node.input]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change_code, "cell.weight_hh_l0: .*weight"),
        (_read_other_steps, "cell.weight_hh_l0: the ONNX file does not read cell.weight_hh_l0.weight.step and reads"),
        (_exchange_directions, "in onnxruntime, fed the same values"),
    ],
)
def test_a_file_with_other_weights_is_refused(
    change: Callable[[ModelProto], None], message: str, tmp_path: Path
) -> None:
    (compressor, small, content), path = exported(), tmp_path / "small.onnx"
    model = onnx.load_from_string(content)
    change(model)
    onnx.save(model, str(path))
    with pytest.raises(bb.VerificationError, match=message):
        bb.verify(compressor, small, path, inputs())


def test_the_size_of_a_weight_does_not_widen_what_rounding_explains() -> None:
    _, small, content = exported()
    comparison = RuntimeComparison(small, onnx.load_from_string(content))
    (reads,) = (one for one in comparison.subgraphs if one.weight_inputs)
    assert set(reads.weight_inputs) == {f"{table.name}.numbers" for table in small.integer.tables}
    values = {name: np.zeros(1000 if name in reads.weight_inputs else 45) for name in reads.inputs}
    assert _terms(reads, values, count=3) == 15


def test_a_network_whose_steps_were_changed_is_refused(tmp_path: Path) -> None:
    (compressor, small, content), path = exported(), tmp_path / "small.onnx"
    path.write_bytes(content)
    bb.verify(compressor, small, path, inputs())
    changed = copy.deepcopy(small)
    changed.program.get_submodule(target_of(TABLES, "cell.weight_ih_l0")).steps[3] *= 2
    with pytest.raises(bb.VerificationError, match=r"cell.weight_ih_l0: .*steps of the table"):
        bb.verify(compressor, changed, path, inputs())


def test_fine_tuned_weights_are_what_is_deployed(tmp_path: Path) -> None:
    compressor, path = fixed(nn.GRU, bits=4), tmp_path / "small.onnx"
    x, before = inputs(8), compressor.model.cell.weight_hh_l0.detach().clone()
    target = torch.randn(8, 3, 2)
    batches = [(x, target)]
    config = bb.FinetuneConfig(epochs=2, compile=False)
    bb.finetune(compressor, batches, nn.functional.mse_loss, config)
    assert not torch.equal(compressor.model.cell.weight_hh_l0, before)
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs(), path)
    bb.verify(compressor, small, path, x)
