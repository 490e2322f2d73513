"""`python -m docs.readme`: write the table of targets into README.md, as it is on the page of results."""

import re

from docs.results import ROOT, markdown
from docs.targets import target_rows

README = ROOT / "README.md"
_TABLE = re.compile(r"^\| network \| target \|.*\n(\|.*\n)*", re.MULTILINE)


def with_table(text: str) -> str:
    """The text with today's table in the place of its own."""
    result, count = _TABLE.subn(lambda _: f"{markdown(target_rows())}\n", text)
    if count != 1:
        raise ValueError(f"README.md has {count} tables that begin with '| network | target |'; it needs one")
    return result


def main() -> None:
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
