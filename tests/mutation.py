"""`python -m tests.mutation [--module NAME] [--count N] [--seed S] [--jobs J]`: would the tests notice?

Small mistakes are made on purpose, one at a time: an operator swapped, a comparison moved, a number or an axis changed,
a sign or a condition turned, a statement left out. For each the tests of its module run on a copy of the source, until
the first failure. A mistake that no test finds has survived, and is listed. This is no part of `make test`; it takes
minutes.

A process that has loaded torch forks one child for each mistake, so that nothing is imported twice.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CONFORMANCE = "tests/functional/test_conformance.py"
# What compiles, large networks, and going through all numbers.
_SLOW = "compil or vgg or resnet or mobilenet or convnext or vit or bert or llama or mantissa"

# Module: what pytest runs for it, the fastest first.
TESTS: dict[str, list[str]] = {
    "functional/gates.py": ["tests/functional/test_gates.py", "tests/nn/test_gates.py"],
    "functional/noise.py": ["tests/functional/test_noise.py"],
    "functional/grid.py": ["tests/functional/test_reference.py", "tests/functional/test_grid.py"],
    "functional/recursion.py": ["tests/functional/test_recursion.py", "tests/functional/test_reference.py"],
    "functional/reference.py": ["tests/functional/test_reference.py", _CONFORMANCE],
    "functional/dispatch.py": ["tests/functional/test_dispatch.py", _CONFORMANCE],
    "functional/operation.py": [
        "tests/functional/test_reference.py",
        "tests/functional/test_operation.py",
        "tests/functional/test_custom_ops.py",
        _CONFORMANCE,
    ],
    "functional/custom_ops.py": ["tests/functional/test_custom_ops.py", _CONFORMANCE],
    "compression/penalties.py": ["tests/compression/test_penalties.py", "tests/compression/test_penalty_base.py"],
    "compression/penalty_base.py": ["tests/compression/test_penalty_base.py", "tests/compression/test_penalties.py"],
    "cost/bops.py": ["tests/cost/test_bops.py", "tests/cost/test_size.py"],
    "deploy/rewrite/remove_channels.py": [
        "tests/deploy/rewrite/test_remove_channels.py",
        "tests/deploy/test_pipeline.py",
        "tests/deploy/test_random_networks.py",
    ],
    "deploy/rewrite/index_masks.py": ["tests/deploy/rewrite/test_index_masks.py"],
    "deploy/rewrite/size_arguments.py": ["tests/deploy/rewrite/test_size_arguments.py"],
    "deploy/rewrite/fuse_quantizers.py": ["tests/deploy/rewrite/test_fuse_quantizers.py"],
    "deploy/modules/layers.py": ["tests/deploy/modules/test_layers.py"],
    "deploy/modules/products.py": ["tests/deploy/modules/test_products.py"],
    "deploy/modules/quantizers.py": ["tests/deploy/modules/test_quantizers.py"],
}

_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.RShift: ast.LShift,
}  # fmt: skip
_COMPARISON = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One mistake in one file."""

    module: str
    line: int
    before: str
    after: str
    source: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {' '.join(self.before.split())} -> {' '.join(self.after.split())}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            swapped: list[ast.cmpop] = [*node.ops]
            swapped[index] = _COMPARISON[type(operator)]()
            yield ast.Compare(node.left, swapped, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (ast.IfExp(test, node.body, node.orelse) for test in _negations(node.test))
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other_values(node.value))


def _negations(test: ast.expr) -> list[ast.expr]:
    """A condition turned, where changing an operator does not turn it already."""
    turned = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
    if isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Compare) and isinstance(test.ops[0], turned)):
        return []
    return [ast.UnaryOp(ast.Not(), test)]


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 1.1 if value else 1.0]
    return [f"not {value}"] if isinstance(value, str) else []


def _removable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):  # a name that is not assigned fails at once
        return not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide something: no texts for people, no types, no checks of what cannot be."""
    skipped: list[ast.AST | None] = []
    if isinstance(tree, ast.JoinedStr | ast.Assert | ast.ImportFrom):
        return
    if isinstance(tree, ast.Raise | ast.AnnAssign | ast.arg | ast.FunctionDef):
        skipped += [getattr(tree, name, None) for name in ("exc", "annotation", "returns")]
        skipped += getattr(tree, "decorator_list", [])
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef):  # a text that stands alone explains
        skipped += [s for s in tree.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not any(child is other for other in skipped):
            yield from _places(child)


def mutants(module: str, source: str) -> list[Mutant]:
    """Every single change of a source file, with all other text and every line where it was."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    encoded, found = source.encode(), []

    def replaced(node: ast.expr | ast.stmt, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        text = text + "\n" * encoded[first:last].count(b"\n") if isinstance(node, ast.stmt) else text
        changed = (encoded[:first] + text.encode() + encoded[last:]).decode()
        found.append(Mutant(module, node.lineno, encoded[first:last].decode(), text, changed))

    for node in _places(ast.parse(source)):
        if isinstance(node, ast.expr):
            for other in changes(node):
                replaced(node, f"({ast.unparse(ast.fix_missing_locations(copy.deepcopy(other)))})")
        elif isinstance(node, ast.If | ast.While):
            for other in _negations(node.test):
                replaced(node.test, f"({ast.unparse(other)})")
        elif isinstance(node, ast.stmt) and _removable(node):
            replaced(node, "pass")
    return found


def sample(module: str, count: int, seed: int) -> list[Mutant]:
    """Some of a module's mutants, always the same ones."""
    every = mutants(module, (ROOT / "src" / "bayesbits" / module).read_text())
    chosen = random.Random(f"{seed} {module}").sample(every, min(count, len(every)))
    return sorted(chosen, key=lambda mutant: mutant.line)


def load() -> None:
    """What every child needs and no mistake touches; nothing that starts threads, which do not survive a fork."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for name in ("pytest", "hypothesis.strategies", "torch._dynamo", "torch._inductor.compile_fx", "torch.export",
                 "triton.language", "transformers", "onnx"):  # fmt: skip
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.split(".")[0] == "bayesbits" for name in sys.modules)


def start(folder: Path, tests: list[str]) -> int:
    """Fork a process that runs tests on the source in `folder`; returns its id."""
    if pid := os.fork():
        return pid
    status = 1
    try:  # whatever happens, this process must not go on as if it were its parent
        os.setsid()
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["PYTHONPATH"] = f"{folder}:{ROOT}"
        sys.path.insert(0, str(folder))
        import hypothesis
        import pytest

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # no smaller example is looked for
        hypothesis.settings.register_profile("mutation", phases=phases, derandomize=True, database=None)
        hypothesis.settings.load_profile("mutation")
        options = ["-x", "-q", "--tb=no", "-k", f"not ({_SLOW})", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what the parent has loaded
        status = int(pytest.main([*options, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def put(folder: Path, module: str, source: str) -> None:
    """Write a file of the copy; with a time of its own, or stale bytecode would be taken for it."""
    path = folder / "bayesbits" / module
    later = max(path.stat().st_mtime, time.time()) + 1
    path.write_text(source)
    os.utime(path, (later, later))


class Run:
    """The tests of one mutant, running."""

    def __init__(self, mutant: Mutant, folder: Path, tests: list[str], seconds: float) -> None:
        self.mutant, self.folder = mutant, folder
        put(folder, mutant.module, mutant.source)
        self._end = time.monotonic() + seconds
        self._pid = start(folder, tests)

    def status(self) -> int | None:
        """The exit status of the tests; None while they run. Tests that take too long have failed."""
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if not done and time.monotonic() < self._end:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        if not done:
            os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status) if done else 1


def survivors_of(module: str, chosen: list[Mutant], folders: list[Path]) -> list[Mutant]:
    """The mutants that the tests of their module let pass."""
    original = (ROOT / "src" / "bayesbits" / module).read_text()
    whole = Mutant(module, 0, "", "", original)
    began = time.monotonic()
    first = Run(whole, folders[0], TESTS[module], 1200)
    while (status := first.status()) is None:
        time.sleep(0.02)
    if status:
        raise SystemExit(f"the tests of {module} fail without a mistake:\n{(folders[0] / 'log.txt').read_text()}")
    seconds = 30 + 3 * len(folders) * (time.monotonic() - began)
    waiting, free, running, survivors = deque(chosen), list(folders), set(), []
    while waiting or running:
        while waiting and free:
            running.add(Run(waiting.popleft(), free.pop(), TESTS[module], seconds))
        for run in list(running):
            if (status := run.status()) is not None:
                running.remove(run)
                free.append(run.folder)
                survivors += [run.mutant] if status == 0 else []
        time.sleep(0.02)
    for folder in folders:
        put(folder, module, original)
    return sorted(survivors, key=lambda mutant: mutant.line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--module", action="append", choices=list(TESTS), help="only this one; may be repeated")
    parser.add_argument("--count", type=int, default=25, help="mutants of each module (25)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are taken (0)")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once (1)")
    options = parser.parse_args()
    os.chdir(ROOT)
    load()
    import torch

    print(f"python {platform.python_version()}  torch {torch.__version__}  {time.strftime('%Y-%m-%d')}", flush=True)
    found: list[Mutant] = []
    total = 0
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(job) for job in range(options.jobs)]
        for folder in folders:
            shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("*.egg-info"))
        for module in options.module or TESTS:
            began = time.monotonic()
            chosen = sample(module, options.count, options.seed)
            survivors = survivors_of(module, chosen, folders)
            killed = len(chosen) - len(survivors)
            print(f"{module:26} {killed:3} of {len(chosen):3} killed  {time.monotonic() - began:5.0f} s", flush=True)
            for mutant in survivors:
                print(f"  survived  {mutant}", flush=True)
            found, total = found + survivors, total + len(chosen)
    print(f"{total - len(found)} of {total} killed, {100 * (total - len(found)) / max(total, 1):.1f}%")


if __name__ == "__main__":
    main()
