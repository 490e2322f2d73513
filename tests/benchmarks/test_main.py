"""Every benchmark runs, prints a table and writes its record; what it measures is not judged here."""

import json

import pytest

from benchmarks.__main__ import BENCHMARKS, main


@pytest.mark.check
def test_every_benchmark_runs(tmp_path, capsys):
    main(["--smoke", "--json", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record["tables"]) == set(BENCHMARKS)
    assert record["command"].startswith("python -m benchmarks --smoke --json ")
    assert "time / ours" in capsys.readouterr().out


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no benchmark is called nothing" in capsys.readouterr().err
