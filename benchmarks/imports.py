"""The time of importing bayesbits, beside that of importing torch, in fresh processes.

Installers compile packages to bytecode, so a user's import reads bytecode. Where an environment keeps Python from
writing it (PYTHONDONTWRITEBYTECODE), every process would compile the checkout anew, and the compiler would be measured.
"""

import os
import subprocess
import sys
from typing import Any

Row = dict[str, Any]

LIMIT = 0.3
"""The seconds that all public names of bayesbits may take on top of torch."""
STATEMENTS = {
    "torch": ("", "import torch"),
    "bayesbits": ("", "import bayesbits"),
    "all public names of bayesbits, after torch": ("import torch", "from bayesbits import *"),
}
TIMED = "{before}\nfrom time import perf_counter\nstart = perf_counter()\n{timed}\nprint(perf_counter() - start)"


def imports(smoke: bool) -> list[Row]:
    """Seconds of imports: the smallest of several fresh processes. Importing bayesbits alone does not import torch."""
    rows: list[Row] = []
    for what, (before, timed) in STATEMENTS.items():
        best = min(seconds_of(before, timed) for _ in range(1 if smoke else 7))
        rows.append(
            {
                "what": what,
                "seconds": round(best, 3),
                "time / torch": round(best / rows[0]["seconds"], 3) if rows else 1.0,
            }
        )
    rows[-1]["limit"] = f"{LIMIT} s"
    return rows


def seconds_of(before: str, timed: str) -> float:
    """The seconds that a statement takes in a fresh process, after another one."""
    code = TIMED.format(before=before, timed=timed)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)
