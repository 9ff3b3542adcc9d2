"""The order in which the properties of an object are written.

It is that of `properties` where a schema lists them; of several schemas that apply to one object,
that in which they stand in the document. Names that are only required come last.
"""

from __future__ import annotations

from typing import Any

from specrt.grammars.schema.document import Document, Node
from specrt.grammars.schema.terms import Choice, Literal, Place
from specrt.grammars.schema.unsupported import UnsupportedError

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class PropertyOrder:
    """Names of properties in the order in which a document lists them."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def names(self, place: Place) -> dict[str, int]:
        """Names that schemas of a place mention, with their position."""
        listed: dict[str, None] = {}
        required: dict[str, None] = {}
        nodes = self._nodes(place)
        nodes.sort(key=lambda node: node.serial)
        stack = list(reversed(nodes))
        seen = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            inside: list[Node] = []
            for keyword, value in node.fields.items():
                if keyword == "properties":
                    listed.update(dict.fromkeys(value))
                elif keyword == "required" and isinstance(value, list):
                    required.update(dict.fromkeys(value))
                elif keyword in ("const", "enum"):
                    values = [value] if keyword == "const" else value
                    for item in values:
                        listed.update(dict.fromkeys(item if isinstance(item, dict) else ()))
                else:
                    inside += self._applied(node, keyword, value)
                    if keyword == "dependentRequired":
                        for name, names in value.items():
                            required.update(dict.fromkeys((name, *names)))
            # In the order of the document: what this schema applies comes before what follows it.
            stack += reversed(inside)
        return {name: index for index, name in enumerate(listed | required)}

    def _nodes(self, place: Place) -> list[Node]:
        nodes = []
        for literal in place:
            if isinstance(literal, Literal):
                nodes.append(literal.node)
            elif isinstance(literal, Choice):
                nodes += [node for inner in literal.places for node in self._nodes(inner)]
        return nodes

    def _applied(self, node: Node, keyword: str, value: Any) -> list[Node]:
        """The schemas that a keyword applies to the object itself."""
        document = self._document
        if keyword in _LISTS:
            return [document.child(node, keyword, index) for index in range(len(value))]
        if keyword in _SINGLES:
            return [document.child(node, keyword)]
        if keyword in _MAPS:
            names = [name for name, item in value.items() if not isinstance(item, list)]
            return [document.child(node, keyword, name) for name in names]
        if keyword in _REFERENCES:
            try:
                return [document.target(node, keyword)]
            except UnsupportedError:
                return []
        return []
