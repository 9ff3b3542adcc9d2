"""A JSON Schema document: its subschemas, their dialects, and where references lead.

A subschema means what it says plus where it stands: its dialect and the address that its references
start from. So a `Node` is both, and there is one node per pair, to be compared by identity. What
the keywords mean is the business of keywords.py and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema_specifications import REGISTRY

from specrt.grammars.schema.dialects import OLD_DRAFTS, URIS, Dialect, assertions, dialect_of
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.schema_walk import join_pointer

MAX_NODES = 50_000
MAX_REFERENCE_CHAIN = 32  # references that lead straight to references


_DYNAMIC = ("$dynamicRef", "$recursiveRef")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")

Resolver = Any  # of `referencing`, which is generic over the schema type


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """Where references start from.

    Attributes:
        resolver: of `referencing`.
        dialect: of the schema resource.
    """

    resolver: Resolver
    dialect: Dialect


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A subschema at its place; two nodes are equal only if they are the same object.

    Attributes:
        schema: an object or a boolean.
        pointer: its JSON pointer (behind the URI of its document if that is another one).
        scope: its dialect and references.
        serial: grows in the order in which nodes are met.
        fields: the keywords that assert something; none for a boolean schema.
    """

    schema: bool | dict[str, Any]
    pointer: str
    scope: Scope
    serial: int
    fields: Mapping[str, Any]

    @property
    def dialect(self) -> Dialect:
        """The dialect of the schema resource."""
        return self.scope.dialect


class _Target(NamedTuple):
    contents: object
    resolver: Resolver


@dataclass(slots=True)
class _Features:
    """What a JSON value holds somewhere inside."""

    pointers: dict[int, str] = field(default_factory=dict)
    has_dynamic_references: bool = False
    has_unevaluated: bool = False
    has_formats: bool = False


class Document:
    """Hands out the nodes of a schema document.

    Attributes:
        root: the whole schema.
    """

    def __init__(self, contents: bool | dict[str, Any], dialect: str | None = None) -> None:
        """
        Args:
            contents: the parsed schema.
            dialect: `$schema` where the document has none; default is 2020-12.

        Raises:
            UnsupportedError: a dialect before draft 4.
        """
        chosen = Dialect.DRAFT2020 if dialect is None else dialect_of(dialect)
        if chosen is None:
            raise UnsupportedError(f"unknown dialect {dialect!r}: expected draft4 to draft2020-12")
        chosen = _declared(contents, chosen)
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._scopes: dict[tuple[object, ...], Scope] = {}
        self._features = _Features()
        self._walked: dict[int, object] = {}  # keeps foreign documents alive: ids are keys
        self._survey(contents, "")
        resource = _resource(contents, URIS[chosen])
        identifier = resource.id() or ""
        registry: Any = REGISTRY
        self._registry = registry.with_resources([(identifier, resource), ("", resource)])
        scope = self._scope(self._registry.resolver(base_uri=identifier), chosen)
        self.root = self._node(contents, "", scope)

    @property
    def has_unevaluated(self) -> bool:
        """Is there an `unevaluatedProperties` or `unevaluatedItems` anywhere?"""
        return self._features.has_unevaluated

    @property
    def has_formats(self) -> bool:
        """Is there a `format` anywhere?"""
        return self._features.has_formats

    def child(self, node: Node, *path: str | int) -> Node:
        """The subschema at `path` below `node`."""
        value: Any = node.schema
        for part in path:
            value = value[part]
        return self._entered(value, join_pointer(node.pointer, *path), node.scope)

    def synthetic(self, node: Node, schema: dict[str, Any], keyword: str) -> Node:
        """A schema that stands for something in `node`, in its dialect.

        Args:
            node: where references of `schema` start from.
            schema: what it says; the same object gives the same node.
            keyword: the keyword of `node` that it stands for.
        """
        self._walked[id(schema)] = schema
        return self._node(schema, join_pointer(node.pointer, keyword), node.scope)

    def target(self, node: Node, keyword: str) -> Node:
        """Where a `$ref`, `$dynamicRef` or `$recursiveRef` of `node` leads.

        Raises:
            UnsupportedError: to another document, to nothing, or to something that is no schema.
        """
        reference = node.fields[keyword]
        try:
            resolved = self._resolved(node.scope.resolver, keyword, reference)
        except (referencing.exceptions.Unresolvable, LookupError, ValueError, AttributeError):
            reason = f"expected a reference into the schema, got {str(reference)[:200]!r}"
            if not str(reference).startswith("#"):
                reason += ": move it into $defs"
            raise UnsupportedError(reason, join_pointer(node.pointer, keyword), keyword) from None
        contents = resolved.contents
        if not isinstance(contents, dict | bool):
            reason = f"{reference[:200]!r} is not a schema"
            raise UnsupportedError(reason, join_pointer(node.pointer, keyword), keyword)
        base = resolved.resolver._base_uri
        dialect = node.dialect
        if isinstance(contents, dict) and id(contents) not in self._features.pointers:
            # Another document, one of the meta-schemas.
            whole = self._registry.contents(base)
            self._survey(whole, f"{base}#")
            dialect = _declared(whole, dialect)
        pointer = self._features.pointers.get(id(contents), f"{base}{reference}")
        return self._entered(contents, pointer, self._scope(resolved.resolver, dialect))

    def plain(self, node: Node) -> Node:
        """`node`, or the schema that it only refers to.

        Raises:
            UnsupportedError: a reference that leads nowhere, or back to itself.
        """
        for _ in range(MAX_REFERENCE_CHAIN):
            if len(node.fields) != 1 or "$ref" not in node.fields:
                return node
            node = self.target(node, "$ref")
        raise UnsupportedError(
            "references that lead back to themselves", join_pointer(node.pointer, "$ref"), "$ref"
        )

    def _resolved(self, resolver: Resolver, keyword: str, reference: str) -> Any:
        if keyword == "$recursiveRef":
            return referencing.jsonschema.lookup_recursive_ref(resolver)
        if reference == "#/":  # not what a JSON pointer says, but what people mean
            reference = "#"
        resolved = resolver.lookup(reference)
        fragment = reference.partition("#")[2]
        if keyword == "$dynamicRef" or not fragment or fragment.startswith("/"):
            return resolved
        # `referencing` lets a `$ref` follow dynamic anchors dynamically; it must not.
        resource = resolver.lookup(reference.partition("#")[0] or resolver._base_uri)
        base = resource.resolver._base_uri
        static = self._registry.resolver(base_uri=base).lookup(f"#{fragment}")
        return _Target(static.contents, resource.resolver)

    def _entered(self, schema: bool | dict[str, Any], pointer: str, scope: Scope) -> Node:
        """The node of a schema that is reached from `scope`; it may have an address of its own."""
        if isinstance(schema, dict):
            keyword = "id" if scope.dialect == Dialect.DRAFT4 else "$id"
            is_hidden = "$ref" in schema and scope.dialect <= Dialect.DRAFT7
            if isinstance(schema.get(keyword), str) and not is_hidden:
                dialect = _declared(schema, scope.dialect)
                resource = _resource(schema, URIS[dialect])
                scope = self._scope(scope.resolver.in_subresource(resource), dialect)
        return self._node(schema, pointer, scope)

    def _node(self, schema: bool | dict[str, Any], pointer: str, scope: Scope) -> Node:
        if isinstance(schema, bool):
            key: tuple[object, ...] = (schema,)
        elif isinstance(schema, dict):
            key = (id(schema), id(scope))
        else:
            raise UnsupportedError("expected a schema (an object or a boolean)", pointer)
        node = self._nodes.get(key)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                raise UnsupportedError("the schema is too large", pointer)
            fields = assertions(schema, scope.dialect) if isinstance(schema, dict) else {}
            node = self._nodes[key] = Node(schema, pointer, scope, len(self._nodes), fields)
        return node

    def _scope(self, resolver: Resolver, dialect: Dialect) -> Scope:
        key: tuple[object, ...] = (resolver._base_uri, dialect)
        if self._features.has_dynamic_references:
            # The outermost resource decides, so that only the first visits count.
            visited = [uri for uri, _ in resolver.dynamic_scope()]
            key += tuple(dict.fromkeys(reversed(visited)))
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(resolver, dialect)
        return scope

    def _survey(self, contents: object, base: str) -> None:
        """Note all pointers of a document, and what its keywords will need."""
        if id(contents) in self._walked:
            return
        self._walked[id(contents)] = contents
        features = self._features
        for pointer, value in _objects(contents, base):
            features.pointers.setdefault(id(value), pointer)
            if not features.has_dynamic_references:
                features.has_dynamic_references = any(keyword in value for keyword in _DYNAMIC)
            if not features.has_unevaluated:
                features.has_unevaluated = any(keyword in value for keyword in _UNEVALUATED)
            features.has_formats = features.has_formats or "format" in value


def _resource(contents: object, uri: str) -> Any:
    specification: Any = referencing.jsonschema.specification_with(uri)
    return specification.create_resource(contents)


def _declared(contents: object, default: Dialect) -> Dialect:
    """The dialect that a schema resource declares."""
    uri = contents.get("$schema") if isinstance(contents, dict) else None
    if not isinstance(uri, str):
        return default
    if uri.rstrip("#") in OLD_DRAFTS:
        raise UnsupportedError("drafts before draft 4 are not supported", "/$schema", "$schema")
    return dialect_of(uri) or default


def _objects(contents: object, base: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects inside a JSON value with their pointers, in document order."""
    stack: list[tuple[str, object]] = [(base, contents)]
    while stack:
        pointer, value = stack.pop()
        if isinstance(value, dict):
            yield pointer, cast("dict[str, Any]", value)
            children = [(join_pointer(pointer, key), child) for key, child in value.items()]
            stack.extend(reversed(children))
        elif isinstance(value, list):
            items = [(join_pointer(pointer, index), child) for index, child in enumerate(value)]
            stack.extend(reversed(items))
