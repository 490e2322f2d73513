"""Latency tables as users give them."""

import pytest
import torch

import bayesbits as bb
from bayesbits.compression.table_files import as_table
from tests.latency_tables import made_up_table

TABLE = made_up_table(bb.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)))


def test_a_table_a_file_or_nothing(tmp_path):
    TABLE.save(tmp_path / "table.json")
    assert as_table(None, "option") is None
    assert as_table(TABLE, "option") is TABLE
    assert as_table(tmp_path / "table.json", "option") == TABLE


def test_errors_name_the_option_and_the_way_out(tmp_path):
    with pytest.raises(ValueError, match=r"option: there is no file 'gone.json'; write it by `bayesbits"):
        as_table("gone.json", "option")
    with pytest.raises(ValueError, match="option is a int; it is a LatencyTable, or the path of its file"):
        as_table(3, "option")
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(ValueError, match=r"option, .*table.json: LatencyTable version None cannot be read"):
        as_table(tmp_path / "table.json", "option")
