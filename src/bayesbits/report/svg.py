"""What the figures have in common: width, title and description, and labels.

Colors and fonts are those of the page's style, by class; lengths are in the figures.
"""

from __future__ import annotations

from bayesbits.report.markup import Markup, tag

WIDTH = 960


def svg(name: str, height: float, title: str, said: str, *children: Markup) -> Markup:
    """A figure; `said` is for those who do not see it, `name` tells it from others of the page."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", said, id=f"{name}-desc"),
        *children,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labeledby=f"{name}-title {name}-desc",
    )


def label(x: float, y: float, text: str, kind: str, anchor: str = "start") -> Markup:
    """Text at a place."""
    return tag("text", text, class_=kind, x=x, y=y, text_anchor=anchor)
