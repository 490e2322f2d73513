"""What became slower is told, against the kept record of the same device."""

import json

import pytest

from benchmarks.compare import kept_record, regressions

ROW = {"network": "vgg7", "batch": 128, "what": "bayesbits", "time / float": 1.4, "memory / float": 1.05}
GPU = {"gpu": "H200", "torch": "2.11", "threads": "16"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "quantizer.json").write_text(json.dumps({"machine": GPU, "tables": {"bandwidth": []}}))
    (tmp_path / "other.json").write_text(json.dumps({"machine": {"gpu": "T4"}, "tables": {"training": [ROW]}}))
    (tmp_path / "training.json").write_text(json.dumps({"machine": GPU, "tables": {"training": [ROW]}}))
    return tmp_path


def test_the_record_is_that_of_the_same_device(folder):
    name, record = kept_record(GPU | {"torch": "2.13"}, "training", folder)
    assert name == "training.json"
    assert record["machine"] == GPU
    assert kept_record({"threads": "16"}, "training", folder) is None
    assert kept_record(GPU, "scaling", folder) is None


@pytest.mark.parametrize(("ratio", "told"), [(1.4, False), (1.6, False), (1.62, True)])
def test_a_ratio_that_grew_by_more_than_15_percent_is_told(folder, ratio, told):
    _, record = kept_record(GPU, "training", folder)
    lines = list(regressions("training", [ROW | {"time / float": ratio}], record))
    assert lines == ([f"vgg7 128 bayesbits: time / float is {ratio}, and was 1.4"] if told else [])


def test_memory_and_rows_that_are_new_are_told(folder):
    _, record = kept_record(GPU, "training", folder)
    rows = [ROW | {"memory / float": 2.0}, ROW | {"batch": 1024}]
    assert next(regressions("training", rows[1:], record)) == "vgg7 128 bayesbits: measured for the record, and not now"
    assert list(regressions("training", rows, record)) == [
        "vgg7 128 bayesbits: memory / float is 2, and was 1.05",
        "vgg7 1024 bayesbits: not in the record",
    ]
