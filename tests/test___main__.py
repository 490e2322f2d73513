"""`python -m bayesbits` is the command `bayesbits`."""

import subprocess
import sys

import bayesbits


def test_the_module_runs_the_command_line():
    command = [sys.executable, "-m", "bayesbits", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (process.returncode, process.stdout) == (0, f"bayesbits {bayesbits.__version__}\n")
