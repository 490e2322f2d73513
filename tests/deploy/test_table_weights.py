"""Tables of embeddings, deployed: codes that are looked up, stored packed and written to ONNX files."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto

import bayesbits as bb
from bayesbits.deploy.table_weights import read_tables, stored_table
from tests.deploy.tables import TOKENS, Words, fixed_words


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize(("bits", "dtype"), [(2, torch.int8), (4, torch.int8), (8, torch.int8), (12, torch.int16)])
def test_codes_times_steps_are_the_rows_of_the_simulation(bits: int, dtype: torch.dtype, per_row: bool) -> None:
    compressor = fixed_words(bits, per_row=per_row)
    tables = read_tables(compressor)
    assert set(tables) == {"words", "positions"}
    tensors = tables["words"].tensors
    assert (tensors["codes"].dtype, tensors["steps"].shape) == (dtype, (11,) if per_row else (1,))
    highest = 2 ** (bits - 1) - 1 if bits <= 8 else 2039  # the range is made for 8 bits
    assert int(tensors["codes"].abs().max()) == highest
    rows = compressor.model.words(torch.arange(11))
    assert torch.equal(tensors["codes"] * tensors["steps"].reshape(-1, 1), rows)


def test_above_16_bits_a_table_is_stored_as_numbers() -> None:
    compressor = fixed_words(20)
    (tensors,) = [table.tensors for name, table in read_tables(compressor).items() if name == "words"]
    assert set(tensors) == {"weight"}
    assert torch.equal(tensors["weight"], compressor.model.words(torch.arange(11)))
    small = bb.deploy(compressor)
    assert torch.equal(stored_table(small.integer, small.integer.table("words")).tensors["weight"], tensors["weight"])


def test_a_table_without_a_width_in_the_plan_stays_in_float() -> None:
    compressor = fixed_words(8)
    bits = {name: width for name, width in compressor.plan().bits.items() if name != "words.weight"}
    compressor.fix(bb.Plan(bits))
    small = bb.deploy(compressor)
    assert [table.name for table in small.integer.tables] == ["positions"]
    assert small.parameter_count == sum(parameter.numel() for parameter in Words().parameters())
    torch.testing.assert_close(small(TOKENS), compressor.model(TOKENS))


@pytest.mark.parametrize("bits", [2, 4, 8, 12, 20])
def test_a_deployed_table_is_stored_packed_and_read_again(bits: int, tmp_path: Path) -> None:
    compressor = fixed_words(bits)
    small = bb.deploy(compressor)
    bb.save(small, tmp_path)
    for again in (bb.load(tmp_path), bb.load(tmp_path, Words())):
        assert torch.equal(again(TOKENS), small(TOKENS))
        assert again.integer.structure == small.integer.structure
    with pytest.raises(ValueError, match=r"its table 'words' has shape \(12, 4\), and \(11, 4\) is stored"):
        bb.load(tmp_path, Words(rows=12))


@pytest.mark.parametrize("form", ["fast", "compact"])
@pytest.mark.parametrize("bits", [4, 8, 20])
def test_the_file_holds_the_codes_and_is_proven(bits: int, form: str, tmp_path: Path) -> None:
    compressor, path = fixed_words(bits), tmp_path / "words.onnx"
    small = bb.deploy(compressor)
    bb.export_onnx(small, TOKENS, path, form=form)
    types = {tensor.name: tensor.data_type for tensor in onnx.load(str(path)).graph.initializer}
    narrow = TensorProto.INT4 if bits == 4 and form == "compact" else TensorProto.INT8
    assert types["words.weight"] == (TensorProto.FLOAT if bits == 20 else narrow)
    found = bb.verify(compressor, small, path, TOKENS)
    assert {tensor.kind for tensor in found.runtime_tensors if tensor.exact} >= {"table"}
    assert found.derived.weights == found.stored.weights == 11 * 4 + 3 * 4 + 4 * 2
