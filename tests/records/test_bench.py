"""What `bayesbits bench` measured survives a file, and a damaged file is refused."""

import pytest

from bayesbits.records.bench import Bench, FileTime, KernelTime

BENCH = Bench(
    "Counting Frame",
    "onnxruntime 1.31",
    20,
    (FileTime("fast", None, 32, 0.5, 10),),
    (KernelTime("a", "Gemm", 1.0, 2.0),),
)


def test_it_is_read_as_it_was_written(tmp_path):
    BENCH.save(tmp_path / "bench.json")
    assert Bench.load(tmp_path / "bench.json") == BENCH


def test_other_types_are_refused():
    with pytest.raises(ValueError, match=r"Bench\.files\[0\]\.seconds: expected float, found str"):
        Bench.from_json(BENCH.to_json().replace("0.5", '"fast"'))
