"""`python -m tests.tree`: write the tree of source files in CONTRIBUTING.md again.

Every file has one line, which is the first sentence of its docstring. Subpackages stand in the order of `ALLOWED` in
tests/test_structure.py, the lowest first; within one files stand before folders, each in alphabetical order.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bayesbits"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- The tree: written by `python -m tests.tree` -->", "<!-- The tree ends here -->"
COLUMN = 32


def first_sentence(path: Path) -> str:
    """The first sentence of a file's docstring, without its full stop; empty where there is no docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.sub(r"(?<!\.)\.$", "", re.split(r"(?<=[^.]\.)\s", text)[0])


def tree(subpackages: Iterable[str]) -> str:
    """Every source file with its line; `subpackages` names the folders and files of the package in order."""
    lines = ["src/bayesbits/"]
    for subpackage in subpackages:
        folder, file = PACKAGE / subpackage, PACKAGE / f"{subpackage}.py"
        lines += _folder(folder, 1) if folder.is_dir() else [_line(file.name, first_sentence(file), 1)]
    return "\n".join(lines)


def page_with_tree(subpackages: Iterable[str]) -> str:
    """CONTRIBUTING.md with the tree as it should be."""
    before, marker, rest = PAGE.read_text().partition(BEGIN)
    assert marker, f"{PAGE.name} has no line {BEGIN}"
    _, marker, after = rest.partition(END)
    assert marker, f"{PAGE.name} has no line {END}"
    return f"{before}{BEGIN}\n```text\n{tree(subpackages)}\n```\n{END}{after}"


def _folder(folder: Path, depth: int) -> list[str]:
    lines = [_line(f"{folder.name}/", first_sentence(folder / "__init__.py"), depth)]
    for file in sorted(folder.glob("*.py")):
        if file.name != "__init__.py":
            lines.append(_line(file.name, first_sentence(file), depth + 1))
    for inner in sorted(entry.parent for entry in folder.glob("*/__init__.py")):
        lines += _folder(inner, depth + 1)
    return lines


def _line(name: str, sentence: str, depth: int) -> str:
    return f"{'  ' * depth + name:<{COLUMN}}  {sentence}".rstrip()


def main() -> None:
    from tests.test_structure import ALLOWED  # which imports this file

    PAGE.write_text(page_with_tree(ALLOWED))


if __name__ == "__main__":
    main()
