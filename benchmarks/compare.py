"""What has become slower since the record of the same device that is kept in `results/`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TOLERATED = 1.15
"""A ratio that has grown by more than this is told of."""

Record = Mapping[str, Any]


def kept_record(machine: Mapping[str, str], name: str, folder: Path = RESULTS) -> tuple[str, Record] | None:
    """The file that holds a table of this name, measured on the same device."""
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if name in record.get("tables", {}) and _device(record.get("machine", {})) == _device(machine):
            return path.name, record
    return None


def regressions(name: str, rows: list[dict[str, Any]], record: Record) -> Iterator[str]:
    """A line for each ratio that has grown, and for each row that only one of both has."""
    kept = {_key(row): row for row in record["tables"][name]}
    missing = kept.keys() - {_key(row) for row in rows}
    yield from (f"{' '.join(map(str, key))}: measured for the record, and not now" for key in sorted(missing, key=str))
    for row in rows:
        label = " ".join(str(part) for part in _key(row))
        before = kept.get(_key(row))
        if before is None:
            yield f"{label}: not in the record"
            continue
        for ratio in (column for column in row if column.endswith("/ float") and column in before):
            if row[ratio] > TOLERATED * before[ratio]:
                yield f"{label}: {ratio} is {row[ratio]:g}, and was {before[ratio]:g}"


def _device(machine: Mapping[str, str]) -> tuple[str | None, ...]:
    gpu = machine.get("gpu")
    return (gpu,) if gpu else (None, machine.get("threads"))


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in ("network", "batch", "pixels", "what") if column in row)
