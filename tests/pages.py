"""What a report's page shows, read back from its HTML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

_DRAWING = "{http://www.w3.org/2000/svg}"


class Page:
    """A page, parsed strictly: it is well-formed XML."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        self.text = "\n".join(self.root.itertext())
        found = list(self.root.iter("figure"))
        self.figures = {str(figure.get("id")): figure for figure in found}
        assert len(self.figures) == len(found), "two figures of one name"

    def marks(self, figure: str) -> list[tuple[float, ...]]:
        """(x, y, count) of each mark, those that it has."""
        names = ("data-x", "data-y", "data-count")
        return [
            tuple(float(mark.attrib[name]) for name in names if name in mark.attrib)
            for mark in self.figures[figure].iter()
            if "data-y" in mark.attrib
        ]

    def plotted(self) -> list[float]:
        """All numbers of all marks."""
        return [value for name in self.figures for mark in self.marks(name) for value in mark]

    def is_drawn(self, figure: str) -> bool:
        return self.figures[figure].find(f"{_DRAWING}svg") is not None

    def needs_nothing(self) -> bool:
        """No script, and nothing that a browser would fetch."""
        tags = {element.tag for element in self.root.iter()}
        names = {name for element in self.root.iter() for name in element.attrib}
        styles = "".join(style.text or "" for style in self.root.iter("style"))
        fetched = {"script", "link", "img", "iframe", f"{_DRAWING}image", f"{_DRAWING}use"}
        return not tags & fetched and not names & {"src", "href"} and "url(" not in styles


def numbers_in(document: Any) -> Iterator[float]:
    """All numbers of a JSON document, keys of objects and places in lists included."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key.isdecimal():
                yield float(key)
            yield from numbers_in(value)
    elif isinstance(document, list):
        yield from range(1, len(document) + 1)
        for value in document:
            yield from numbers_in(value)
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield float(document)
