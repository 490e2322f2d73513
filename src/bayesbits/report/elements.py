"""What the sections of the page are made of: headings, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayesbits.report.markup import Markup, join, tag


def section(title: str, *children: str) -> Markup:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title), *children)


def paragraph(*children: str, **attributes: str) -> Markup:
    """A paragraph."""
    return tag("p", *children, **attributes)


def code(text: str) -> Markup:
    """A name or a command in a line."""
    return tag("code", text)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, foot: Sequence[str] = ()
) -> Markup:
    """A table whose rows begin with what they are about; the first `texts` columns are text, the others numbers."""
    head = tag("tr", *(tag("th", name, scope="col", **_kind(place, texts)) for place, name in enumerate(heads)))
    parts = [tag("caption", caption), tag("thead", head), tag("tbody", *(_row(cells, texts) for cells in rows))]
    if foot:
        parts.append(tag("tfoot", _row(foot, texts)))
    return tag("div", tag("table", *parts), class_="wide")


def facts(pairs: Iterable[tuple[str, str]], caption: str) -> Markup:
    """A table of names and what they are."""
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in pairs)
    return tag("div", tag("table", tag("caption", caption), tag("tbody", *rows)), class_="wide")


def _row(cells: Sequence[str], texts: int) -> Markup:
    first, *others = cells
    return tag(
        "tr",
        tag("th", first, scope="row"),
        join(tag("td", cell, **_kind(place, texts)) for place, cell in enumerate(others, start=1)),
    )


def _kind(place: int, texts: int) -> dict[str, str | float]:
    return {"class_": "number"} if place >= texts else {}
