"""Sphinx: pages in Markdown, the API from docstrings, and figures from result files."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import bayesbits  # noqa: E402 (found by the line above)
from docs import results  # noqa: E402

project = "bayesbits"
project_copyright = "the authors of bayesbits"
version = release = bayesbits.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["__pycache__"]
html_theme = "furo"
html_title = f"bayesbits {release}"
templates_path: list[str] = []

myst_enable_extensions = ["dollarmath", "substitution"]
myst_heading_anchors = 3
myst_substitutions = results.tables()

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures have them in the source; the docstrings say what they mean
autodoc_default_options = {"members": True, "inherited-members": "Module,BaseException,RuntimeError,AssertionError"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpick_ignore_regex = [(r"py:.*", r"(?!bayesbits\.).*")]  # other projects' names are not looked up


def _code_in_docstrings(app, what, name, obj, options, lines) -> None:
    """Docstrings have `code` in single backticks, as Markdown does; in reStructuredText that takes two."""
    lines[:] = [re.sub(r"(?<![`:\w])`([^`\n]+)`(?![`_])", r"``\1``", line) for line in lines]


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _code_in_docstrings)
