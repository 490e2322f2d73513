"""A difference in a table is found, wherever it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.modules import TABLES, target_of
from bayesbits.deploy.verification.compare_tables import check_deployed_tables, check_simulated_tables, derive_tables
from bayesbits.deploy.verification.simulation import fixed_copy
from tests.deploy.tables import TOKENS, fixed_words


@pytest.mark.parametrize("bits", [2, 8, 16, 20, 32])
def test_the_derived_tables_are_those_of_simulation_and_deployment(bits: int) -> None:
    compressor = fixed_words(bits)
    fixed = fixed_copy(compressor, compressor.plan())
    tables = derive_tables(fixed, compressor.plan())
    check_simulated_tables(fixed, tables)
    assert check_deployed_tables(bb.deploy(compressor), tables) == 11 * 4 + 3 * 4


class Shifted(nn.Module):
    """Kinds of tokens that are added to what a layer computes, without a normalization behind, as in MobileBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.kinds, self.head = nn.Linear(4, 4), nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        return self.head(self.mix(x) + self.kinds(kinds))


def test_rows_are_compared_before_an_operand_of_an_addition_is_quantized() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [2, 1, 0]]))
    compressor = bb.attach(Shifted().eval(), inputs, bb.Spec(residual_bits=2))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    assert "kinds.output" in compressor.attachment.quantizers
    check_simulated_tables(compressor, derive_tables(compressor, compressor.plan()))


def test_a_code_a_step_and_a_width_that_differ_are_named() -> None:
    compressor = fixed_words(8)
    tables = derive_tables(compressor, compressor.plan())
    for what in ("codes", "steps"):
        for in_module in (False, True):
            small = bb.deploy(compressor)
            module = small.program.get_submodule(target_of(TABLES, "words"))
            holder = small.integer.tensors[f"words.{what}"]
            setattr(module, what, holder.clone())
            holder = getattr(module, what) if in_module else holder
            holder[3] = holder[3] + 1
            with pytest.raises(bb.VerificationError, match=rf"words: .*{what} of the table"):
                check_deployed_tables(small, tables)
    wider = {**tables, "words": replace(tables["words"], bits=4)}
    with pytest.raises(bb.VerificationError, match="words: it has 8 bits when deployed, and 4 by the plan"):
        check_deployed_tables(bb.deploy(compressor), wider)
    with pytest.raises(bb.VerificationError, match="words: this table is quantized in the deployed network"):
        check_deployed_tables(bb.deploy(compressor), {"positions": tables["positions"]})


def test_a_simulation_with_another_table_is_named() -> None:
    compressor = fixed_words(8)
    tables = derive_tables(compressor, compressor.plan())
    with torch.no_grad():
        compressor.model.words.weight[2, 1] += 1
    with pytest.raises(bb.VerificationError, match="words: 1 of 44 numbers of the table that it was trained with"):
        check_simulated_tables(compressor, tables)
    compressor.model.words = nn.Embedding(11, 4)
    with pytest.raises(bb.VerificationError, match="words: the simulation reads its rows without rounding"):
        check_simulated_tables(compressor, tables)


def _change_code(model: ModelProto) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "words.weight")
    codes = numpy_helper.to_array(tensor).copy()
    codes[9, 0] += 1  # a row that the inputs of the verification do not look up
    tensor.CopyFrom(numpy_helper.from_array(codes, tensor.name))


def _read_other_steps(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Gather" and "words.weight.step" in node.input)
    node.input[0] = "positions.weight.step"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change_code, "words: .*weight"),
        (_read_other_steps, "words: the ONNX file does not read words.weight.step and reads positions.weight.step"),
    ],
)
def test_a_file_with_another_table_is_refused(
    change: Callable[[ModelProto], None], message: str, tmp_path: Path
) -> None:
    compressor, path = fixed_words(8), tmp_path / "words.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, TOKENS, path)
    model = onnx.load(str(path))
    change(model)
    onnx.save(model, str(path))
    with pytest.raises(bb.VerificationError, match=message):
        bb.verify(compressor, small, path, TOKENS)
