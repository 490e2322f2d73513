"""The structure: imports point down, tests mirror the source file by file, and the tree in CONTRIBUTING.md is true."""

import ast
from pathlib import Path

from tests.tree import PACKAGE, PAGE, ROOT, first_sentence, page_with_tree

# The subpackages from the lowest to the highest, and what each may import; each may import itself.
ALLOWED = {
    "utils": set(),
    "functional": {"utils"},
    "nn": {"utils", "functional"},
    "methods": {"utils", "functional", "nn"},
    "records": {"utils"},
    "cost": {"utils", "records"},
    "graph": {"utils", "records", "cost"},
    "compression": {"utils", "functional", "nn", "methods", "records", "cost", "graph"},
    "training": {"utils", "functional", "nn", "records", "compression"},
    "posttraining": {"utils", "nn", "records", "compression"},
    "deploy": {"utils", "functional", "nn", "records", "cost", "graph", "compression"},
    "baselines": {"utils", "functional", "nn", "records", "cost", "graph", "compression", "posttraining"},
    "zoo": {"utils"},
    "recipes": {"utils", "methods", "records", "cost", "compression", "training", "zoo"},
    "sweeps": {"utils", "training", "recipes"},
    "report": {"utils", "records", "cost", "deploy", "recipes", "sweeps"},
    "cli": {
        "utils", "records", "cost", "graph", "compression", "training", "posttraining", "deploy", "baselines", "zoo",
        "recipes", "sweeps", "report",
    },
    "__main__": {"cli"},
}  # fmt: skip


def subpackages_imported_by(path: Path) -> set[str]:
    subpackages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bayesbits" else [module]
        subpackages |= {name.split(".")[1] for name in names if name.startswith("bayesbits.")}
    return subpackages


def test_imports_point_down():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        subpackage = relative.parts[0].removesuffix(".py")
        if subpackage == "__init__":
            continue
        assert subpackage in ALLOWED, f"{relative}: say in ALLOWED what {subpackage} may import"
        wrong = subpackages_imported_by(path) - ALLOWED[subpackage] - {subpackage}
        assert not wrong, f"{relative} imports {sorted(wrong)}; {subpackage} may import {sorted(ALLOWED[subpackage])}"


def test_the_direction_has_no_circles():
    lower: set[str] = set()
    for subpackage, allowed in ALLOWED.items():
        assert allowed <= lower, f"{subpackage} may import {sorted(allowed - lower)}, which stand above it"
        lower.add(subpackage)


def test_the_tree_in_contributing_is_true():
    assert PAGE.read_text() == page_with_tree(ALLOWED), "write it again: python -m tests.tree"


def test_every_source_file_says_in_one_sentence_what_it_is_for():
    silent = [path for path in sources() if not first_sentence(path)]
    assert not silent, f"without a docstring: {sorted(map(str, silent))}"


def test_every_room_is_in_the_tree():
    subpackages = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in sources()}
    assert subpackages == set(ALLOWED), "ALLOWED names every subpackage, and the tree is written from it"


def test_test_folders_mirror_the_source():
    for folder in (ROOT / "tests").iterdir():
        if folder.is_dir() and folder.name not in ("__pycache__", "gpu", "benchmarks", "docs", "examples"):
            assert (PACKAGE / folder.name).is_dir(), f"tests/{folder.name} mirrors nothing"


def test_every_module_has_its_test_file():
    """For `src/bayesbits/nn/gates.py` there is `tests/nn/test_gates.py`."""
    modules = [path.relative_to(PACKAGE) for path in sources()]
    mirrored = {path: ROOT / "tests" / path.with_name(f"test_{path.name}") for path in modules}
    missing = [str(path) for path, test in mirrored.items() if not test.exists()]
    assert not missing, f"write the mirrored test files of {missing}"


def sources() -> list[Path]:
    """Every source file but `__init__.py`."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]
