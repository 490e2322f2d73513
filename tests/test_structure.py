"""The house: imports point down, every folder of tests mirrors the source, and the README's tree is true."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bayesbits"

# The rooms from the lowest to the highest, and what each may import; a room may always import itself.
ALLOWED = {
    "utils": set(),
    "functional": {"utils"},
    "nn": {"utils", "functional"},
    "records": {"utils"},
    "cost": {"utils", "records"},
    "graph": {"utils", "records", "cost"},
    "compression": {"utils", "functional", "nn", "records", "cost", "graph"},
    "training": {"utils", "functional", "nn", "records", "compression"},
    "posttraining": {"utils", "nn", "records", "compression"},
    "deploy": {"utils", "functional", "nn", "records", "cost", "graph", "compression"},
    "baselines": {"utils", "functional", "nn", "records", "graph", "compression", "posttraining"},
    "zoo": {"utils"},
    "recipes": {"utils", "records", "cost", "compression", "training", "zoo"},
    "report": {"utils", "records", "cost", "deploy", "recipes"},
    "cli": {
        "utils", "records", "cost", "graph", "compression", "training", "posttraining", "deploy", "baselines", "zoo",
        "recipes", "report",
    },
    "__main__": {"cli"},
}  # fmt: skip


def rooms_imported_by(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bayesbits" else [module]
        rooms |= {name.split(".")[1] for name in names if name.startswith("bayesbits.")}
    return rooms


def test_imports_point_down():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        room = relative.parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in ALLOWED, f"{relative}: say in ALLOWED what the room {room} may import"
        wrong = rooms_imported_by(path) - ALLOWED[room] - {room}
        assert not wrong, f"{relative} imports {sorted(wrong)}; {room} may import {sorted(ALLOWED[room])}"


def test_the_direction_has_no_circles():
    lower: set[str] = set()
    for room, allowed in ALLOWED.items():
        assert allowed <= lower, f"{room} may import {sorted(allowed - lower)}, which stand above it"
        lower.add(room)


def test_the_readme_tree_lists_every_source_file():
    tree = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree is not None
    listed, parents = set(), []
    for line in tree[1].splitlines():
        entry = line.split("  ")[0] if line.startswith("src") else re.match(r"(\s*)(\S+)", line)
        if line.startswith("src") or entry is None:
            parents = []
            continue
        depth = len(entry[1]) // 2
        parents[depth - 1 :] = [entry[2].rstrip("/")]
        if entry[2].endswith(".py"):
            listed.add("/".join(parents))
    existing = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert listed == existing


def test_test_folders_mirror_the_source():
    for folder in (ROOT / "tests").iterdir():
        if folder.is_dir() and folder.name not in ("__pycache__", "gpu", "benchmarks"):
            assert (PACKAGE / folder.name).is_dir(), f"tests/{folder.name} mirrors nothing"
