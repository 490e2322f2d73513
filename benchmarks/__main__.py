"""`python -m benchmarks [--smoke] [--json FILE] [NAME ...]`: run benchmarks and print their tables."""

import argparse
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from textwrap import indent

import torch
from rich.console import Console

from bayesbits.utils.tables import text_table
from benchmarks import captured, deployed, equality, imports, latency, networks, quantizer, report, training
from benchmarks.compare import TOLERATED, kept_record, regressions
from benchmarks.quantizer import Row

BENCHMARKS = {
    "bandwidth": quantizer.bandwidth,
    "quantizer": quantizer.against_peers,
    "training": training.training,
    "scaling": training.scaling,
    "captured": captured.captured,
    "deployed": deployed.deployed,
    "networks": networks.networks,
    "latency": latency.latency,
    "equality": equality.equality,
    "import": imports.imports,
    "report": report.report,
}

COMPARED = ("training", "scaling")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, of {', '.join(BENCHMARKS)}; all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only show that everything runs")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    record = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "command": command, "tables": {}}
    print("  ".join(f"{key} {value}" for key, value in record["machine"].items()))
    for name in options.names or BENCHMARKS:
        rows = BENCHMARKS[name](options.smoke)
        record["tables"][name] = rows
        print(f"\n{name}: {BENCHMARKS[name].__doc__}")
        print(table(rows) if rows else "  (not on this machine)")
        if name in COMPARED and not options.smoke:
            compare_with_record(name, rows)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def compare_with_record(name: str, rows: list[Row]) -> None:
    """Say what has become slower, or takes more memory, since the kept record of the same device."""
    console, kept = Console(), kept_record(machine(), name)
    if kept is None:
        console.print(f"  no record of {name} on this device is kept in benchmarks/results", style="yellow")
        return
    path, record = kept
    lines = list(regressions(name, rows, record))
    for line in lines:
        console.print(f"  {line} in {path}", style="bold red", soft_wrap=True)
    if not lines:
        limit = f"{TOLERATED - 1:.0%}"
        console.print(f"  nothing is slower than in {path} ({record['date']}) by more than {limit}", style="green")


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    result = {"python": platform.python_version(), "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        result["gpu"] = torch.cuda.get_device_name()
    return result


def table(rows: list[Row]) -> str:
    """Rows as aligned columns; a row need not have all of them."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    return indent(text_table(columns, cells, left=range(len(columns))), "  ")


if __name__ == "__main__":
    main()
