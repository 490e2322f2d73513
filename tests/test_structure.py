"""The house: imports point down, every folder of tests mirrors the source, and the README's tree is true."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bayesbits"

# What each room may import; a room always may import itself. The order is the way down.
ALLOWED = {
    "checks": set(),
    "writing": set(),
    "naming": set(),
    "tree": set(),
    "records": {"writing"},
    "recorder": set(),
    "topology": {"records"},
    "spec": {"checks", "topology", "records", "functional"},
    "plan": {"topology", "records"},
    "functional": set(),
    "nn": {"functional"},
    "calibration": {"nn", "functional"},
    "diagnosis": {"nn", "functional", "calibration"},
    "cost": {"topology", "plan"},
    "graph": {"nn", "topology", "spec", "cost", "naming", "tree"},
    "objective": {"nn", "cost", "spec", "topology", "functional"},
    "compressor": {
        "graph",
        "cost",
        "objective",
        "calibration",
        "diagnosis",
        "nn",
        "plan",
        "spec",
        "topology",
    },
    "training": {"calibration", "checks", "compressor", "functional", "nn", "plan", "recorder", "writing"},
    "front": {"records", "plan"},
    "posttraining": {"compressor", "front", "plan", "graph", "calibration", "checks", "nn"},
    "integer": {"records", "tree"},
    "deploy": {
        "compressor",
        "cost",
        "functional",
        "graph",
        "integer",
        "naming",
        "nn",
        "plan",
        "records",
        "topology",
        "tree",
        "writing",
    },
    "baselines": {
        "posttraining",
        "compressor",
        "front",
        "graph",
        "topology",
        "plan",
        "records",
        "recorder",
        "functional",
        "nn",
        "calibration",
    },
    "zoo": set(),
    "recipes": {"training", "compressor", "cost", "plan", "spec", "topology", "writing", "zoo"},
    "report": {"recipes", "deploy", "cost", "plan", "topology"},
    "cli": {
        "report",
        "recipes",
        "training",
        "posttraining",
        "baselines",
        "deploy",
        "compressor",
        "front",
        "graph",
        "cost",
        "plan",
        "topology",
        "writing",
        "zoo",
    },
    "__main__": {"cli"},
}


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
    def below(room: str, seen: tuple[str, ...] = ()) -> None:
        assert room not in seen, f"circle: {' -> '.join((*seen, room))}"
        for lower in ALLOWED.get(room, ()):
            below(lower, (*seen, room))

    for room in ALLOWED:
        below(room)


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
