"""The page as a strict reader sees it."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "input"}
_LOADING = {"src", "href", "xlink:href", "srcset", "action", "data", "background", "poster"}


class Page(HTMLParser):
    """Elements, attributes and text; an AssertionError where a tag is not closed or something is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # where a name may be broken; no part of the text
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        for name, value in attrs:
            assert name not in _LOADING or (tag == "a" and value.startswith("#"))
            assert not name.startswith("on")
            assert "url(" not in (value or "")
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            assert "url(" not in data
            assert "@import" not in data
        elif self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif data.strip():
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def all(self, tag, **attributes):
        """The attributes of all elements of a kind."""
        wanted = {name.removesuffix("_"): value for name, value in attributes.items()}
        return [found for name, found in self.elements if name == tag and wanted.items() <= found.items()]
