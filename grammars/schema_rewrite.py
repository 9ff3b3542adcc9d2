"""A copy of a JSON Schema that says only what llguidance enforces, and the list of the rest.

Annotations go, keywords that it does not know go and are noted, and what references lead to moves
into `$defs` under plain names, since llguidance does not read escapes in references.
"""

from __future__ import annotations

from typing import NamedTuple

from specrt.grammars.schema_walk import child_schemas, join_pointer, resolve_reference

Schema = dict[str, object]

# What llguidance 1.9 enforces exactly, or refuses.
_ENFORCED = frozenset(
    {
        "$ref",
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
# Asserting keywords that it does not know. `if` itself asserts nothing.
_UNKNOWN = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
_FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "unknown",
        "uri",
        "uuid",
    }
)
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}


class Finding(NamedTuple):
    """A keyword that is not enforced.

    Attributes:
        pointer: its JSON pointer; "" is the whole schema.
        keyword: the keyword, "" for all of the schema there.
        reason: why not.
    """

    pointer: str
    keyword: str
    reason: str


class SchemaRewrite:
    """A copy of a schema that says only what the engine enforces.

    Attributes:
        top: the copy.
        defs: what references lead to, by new name.
        sites: (pointer in the original, schema in the copy), inner ones first.
        findings: what was left out.
    """

    def __init__(self, document: object) -> None:
        self._document = document
        self._names: dict[str, str] = {}  # pointer of a reference's target -> name in defs
        self._targets: list[tuple[str, object]] = []  # pointer and target, in the order of names
        self.defs: dict[str, object] = {}
        self.findings: list[Finding] = []
        groups = [self._rewrite_at("", document)]
        self.top = groups[0][0] if isinstance(groups[0][0], dict) else _from_bool(document)
        for pointer, target in self._targets:  # grows as references are met
            groups.append(self._rewrite_at(pointer, target))
            self.defs[self._names[pointer]] = groups[-1][0]
        # References lead to later groups, so what is inner comes first when groups are reversed.
        self.sites = [site for _, sites in reversed(groups) for site in sites]

    def with_defs(self, schema: Schema) -> Schema:
        """`schema`, a part of the copy, as a document of its own."""
        return {**schema, "$defs": self.defs} if self.defs else dict(schema)

    def _rewrite_at(self, pointer: str, node: object) -> tuple[object, list[tuple[str, Schema]]]:
        sites: list[tuple[str, Schema]] = []
        return self._copy(pointer, node, sites), sites

    def _copy(self, pointer: str, node: object, sites: list[tuple[str, Schema]]) -> object:
        if not isinstance(node, dict):
            return node
        children = {below: child for below, _, child in child_schemas(node)}
        copy: Schema = {}
        for keyword, value in node.items():
            here = join_pointer("", keyword)
            problem = _problem(keyword, value, node)
            if problem:
                self.findings.append(Finding(pointer + here, keyword, problem))
            if keyword not in _ENFORCED or (keyword == "format" and problem):
                continue
            if here in children:
                copy[keyword] = self._copy(pointer + here, value, sites)
            elif keyword in ("properties", "patternProperties") and isinstance(value, dict):
                copy[keyword] = {
                    name: self._copy(pointer + join_pointer(here, name), child, sites)
                    for name, child in value.items()
                }
            elif isinstance(value, list) and join_pointer(here, 0) in children:
                copy[keyword] = [
                    self._copy(pointer + join_pointer(here, index), child, sites)
                    for index, child in enumerate(value)
                ]
            elif keyword == "$ref":
                copy[keyword] = "#/$defs/" + self._name(str(value))
            elif keyword == "enum" and isinstance(value, list):
                writable = [item for item in value if _is_writable(item)]
                copy.update({"enum": writable} if writable or not value else {})
            elif keyword != "const" or _is_writable(value):
                copy[keyword] = value
        sites.append((pointer, copy))
        return copy

    def _name(self, reference: str) -> str:
        pointer, target = resolve_reference(self._document, reference)
        if pointer not in self._names:
            self._names[pointer] = f"d{len(self._names)}"
            self._targets.append((pointer, target))
        return self._names[pointer]

    def prune_endless(self) -> None:
        """Make references to what no finite value satisfies impossible where they stand.

        llguidance would write such a value for ever.
        """
        finite: set[str] = set()
        while True:
            found = {n for n, schema in self.defs.items() if _is_finite(schema, finite)}
            if found == finite:
                break
            finite = found
        for _, site in self.sites:
            reference = site.get("$ref")
            if isinstance(reference, str) and reference.removeprefix("#/$defs/") not in finite:
                site.clear()
                site["enum"] = []
        self.defs = {name: schema for name, schema in self.defs.items() if name in finite}


def _from_bool(value: object) -> Schema:
    return {} if value else {"enum": []}


def _problem(keyword: str, value: object, schema: Schema) -> str:
    """Why a keyword is not enforced (exactly), "" when it is."""
    if keyword in _UNKNOWN:
        is_idle = _NEEDS.get(keyword, keyword) not in schema
        if keyword in ("uniqueItems", "not"):
            is_idle |= value is False
        elif keyword != "contains":
            is_idle |= value in (True, {})
        return "" if is_idle else "the grammar engine does not know this keyword"
    if keyword == "format":
        return "" if value in _FORMATS else "the grammar engine does not know this format"
    if keyword == "minProperties" and isinstance(value, int | float):
        required = schema.get("required")
        num_free = value - (len(set(required)) if isinstance(required, list) else 0)
        # Keys outside `properties` may come twice: the engine counts both.
        if num_free >= 2 and schema.get("additionalProperties") is not False:
            return "a key that comes twice would count twice"
    if keyword in ("const", "enum"):
        values = value if keyword == "enum" and isinstance(value, list) else [value]
        if not all(map(_is_exact, values)):
            return "integers beyond 2**53 are rounded"
        if values and not any(map(_is_writable, values)):
            return "control characters cannot be written"
    elif keyword in _ENFORCED and isinstance(value, int) and not _is_exact(value):
        return "integers beyond 2**53 are rounded"
    return ""


def _is_exact(value: object) -> bool:
    """Does every number in a literal survive as a double and a 64-bit integer?"""
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63 and int(float(value)) == value
    return True


def _is_writable(value: object) -> bool:
    r"""Can a literal be written with the escapes \" \\ \b \f \n \r \t alone?"""
    if isinstance(value, str):
        return not any(c < " " and c not in "\b\f\n\r\t" or c == "\x7f" for c in value)
    if isinstance(value, list):
        return all(map(_is_writable, value))
    if isinstance(value, dict):
        return all(map(_is_writable, value.values()))
    return True


def _is_finite(schema: object, finite: set[str]) -> bool:
    """Could a finite value satisfy `schema`, if the references in `finite` can? Errs to True."""
    if not isinstance(schema, dict):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.removeprefix("#/$defs/") not in finite:
        return False
    if not all(_is_finite(s, finite) for s in as_list(schema.get("allOf"))):
        return False
    for union in ("anyOf", "oneOf"):
        if union in schema and not any(_is_finite(s, finite) for s in as_list(schema[union])):
            return False
    if "enum" in schema:
        return bool(schema["enum"])
    kinds = schema.get("type", ["null"])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "const" in schema or set(kinds) - {"object", "array"}:
        return True
    if "object" in kinds:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        if all(_is_finite(known.get(key), finite) for key in as_list(schema.get("required"))):
            return True
    if "array" in kinds:
        least = schema.get("minItems", 0)
        items = schema.get("items") if "prefixItems" not in schema else None
        return not least or _is_finite(items, finite)
    return False


def as_list(value: object) -> list[object]:
    """`value` when it is a list, else []."""
    return list(value) if isinstance(value, list) else []
