"""Is a JSON Schema sane enough to hand to an engine, and does an instance satisfy it?

Everything here treats the schema as hostile input: sizes and depth are bounded before anything
recursive looks at it. It knows no engine: what an engine
cannot enforce is the business of schema/.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

import idna
import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import jsonschema_rs
import jsonschema_specifications
import referencing
import referencing.exceptions

from specrt.errors import SchemaError
from specrt.grammars.schema_walk import document_pointer, join_pointer, subschemas

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEPTH = 48
MAX_NODES = 10_000
MAX_ENUM_VALUES = 2_000
MAX_ENUM_BYTES = 128 * 1024
MAX_LITERAL_BYTES = 8 * 1024
MAX_PATTERN_BYTES = 1024
MAX_COUNT = 2**31 - 1  # of maxLength, maxItems, ...
MAX_UNION_NESTING = 8
MAX_PROPERTIES = 400  # of one object; llguidance gives up at about 500 optional ones
MAX_MULTIPLE_OF = 1_000

_FULL_STOPS = re.compile("[.\u3002\uff0e\uff61]")
_NUL = re.compile(r"\0|\\x00|\\u0000|\\0(?![0-9])|\\[xu]\{0+\}")


class Violation(NamedTuple):
    """One way in which an instance breaks its schema.

    Attributes:
        pointer: JSON pointer of the broken keyword in the schema document (`$ref`s followed).
        keyword: that keyword; "" when the schema there is `false`, and then `pointer` may be that
            of a schema around it.
        message: what is wrong, beginning with the place in the instance.
        causes: `pointer` and those of the errors beneath it (the branches of an anyOf, say).
    """

    pointer: str
    keyword: str
    message: str
    causes: tuple[str, ...]

    def is_due_to(self, pointer: str) -> bool:
        """Can the keyword at `pointer` be what is broken?"""
        is_around = not self.keyword and f"{pointer}/".startswith(f"{self.pointer}/")
        return is_around or any(f"{cause}/".startswith(f"{pointer}/") for cause in self.causes)


def check_schema(schema: object, param: str | None = None) -> None:
    """Refuse what is no JSON Schema, or one too large to be honest.

    The dialect is that of `$schema`, else 2020-12.

    Args:
        schema: the parsed schema.
        param: the request field it came in, for the error.

    Raises:
        SchemaError: with the JSON pointer of the first thing that is wrong.
    """

    def refuse(message: str, pointer: str = "", keyword: str = "") -> SchemaError:
        where = f" at {pointer}" if pointer else ""
        return SchemaError(f"{message}{where}", param=param, pointer=pointer, keyword=keyword)

    if not isinstance(schema, dict | bool):
        raise refuse(f"expected a JSON Schema (an object or a boolean), got {_kind(schema)}")
    _check_values(schema, refuse)
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        raise refuse(f"expected a schema of at most {MAX_SCHEMA_BYTES} bytes, got {size}")
    try:
        if not _is_plainly_valid(schema):
            _dialect(schema).check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        pointer = join_pointer("", *error.absolute_path)
        keyword = str(error.absolute_path[-1]) if error.absolute_path else ""
        raise refuse(f"not a valid JSON Schema: {error.message[:300]}", pointer, keyword) from None
    for pointer, node, num_unions in subschemas(schema):
        if num_unions > MAX_UNION_NESTING:
            raise refuse(f"expected anyOf/oneOf nested at most {MAX_UNION_NESTING} deep", pointer)
        properties = node.get("properties")
        if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
            here = join_pointer(pointer, "properties")
            message = f"expected at most {MAX_PROPERTIES} properties, got {len(properties)}"
            raise refuse(message, here, "properties")
        for keyword, value in node.items():
            problem = _keyword_problem(keyword, value)
            if problem:
                raise refuse(problem, join_pointer(pointer, keyword), keyword)


def validate_instance(schema: str | object, instance: object) -> list[Violation]:
    """Where `instance` breaks `schema`.

    Meant for finished calls whose grammar left something unenforced: the schema's own patterns run
    in Python's `re`, which has no time limit.

    Args:
        schema: JSON text (its validator is kept) or the parsed schema; `check_schema` passed.
        instance: the parsed value.

    Returns:
        One entry per broken keyword, [] when the instance is valid.
    """
    document, validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
    try:
        errors = list(validator.iter_errors(instance))
    except referencing.exceptions.Unresolvable as reason:
        message = f"not checked: a reference leads nowhere ({str(reason)[:200]})"
        return [Violation("", "$ref", message, ("",))]
    violations = []
    for error in errors:
        causes, pending = [], [error]
        while pending:
            cause = pending.pop()
            causes.append(_pointer_of(document, cause))
            pending.extend(cause.context or ())
        place = join_pointer("", *error.absolute_path) or "the value"
        message = f"{place}: {error.message[:300]}"
        keyword = str(error.validator or "")
        violations.append(Violation(causes[0], keyword, message, tuple(causes)))
    return violations


def _pointer_of(document: object, error: jsonschema.exceptions.ValidationError) -> str:
    try:
        return document_pointer(document, error.absolute_schema_path)
    except LookupError:  # through an anchor, or into another document
        return join_pointer("", *error.absolute_schema_path)


def _check_values(schema: object, refuse: Callable[[str, str], SchemaError]) -> None:
    """Depth, number of values, finite numbers and whole characters, without recursion."""
    num_values = 0
    stack: list[tuple[str, object, int]] = [("", schema, 1)]
    while stack:
        pointer, node, depth = stack.pop()
        num_values += 1
        if depth > MAX_DEPTH:
            raise refuse(f"expected a schema at most {MAX_DEPTH} levels deep", "")
        if num_values > MAX_NODES:
            raise refuse(f"expected a schema of at most {MAX_NODES} values", "")
        if isinstance(node, float) and not math.isfinite(node):
            raise refuse(f"expected finite numbers, got {node}", pointer)
        if isinstance(node, str) and not _is_text(node):
            raise refuse("expected Unicode text, got a lone surrogate", pointer)
        if isinstance(node, dict):
            for key, value in node.items():
                if not isinstance(key, str) or not _is_text(key):
                    raise refuse("expected keys that are Unicode text", pointer)
                stack.append((join_pointer(pointer, key), value, depth + 1))
        elif isinstance(node, list):
            stack.extend((join_pointer(pointer, i), item, depth + 1) for i, item in enumerate(node))


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _keyword_problem(keyword: str, value: object) -> str:
    """What is wrong with one keyword of a schema, "" when nothing is."""
    if keyword in ("pattern", "patternProperties"):
        patterns = [value] if isinstance(value, str) else list(value)  # type: ignore[call-overload]
        return next(filter(None, map(_pattern_problem, patterns)), "")
    if keyword in ("enum", "const"):
        return _literal_problem(value if keyword == "enum" else [value])
    if isinstance(value, int | float) and not isinstance(value, bool):
        if re.fullmatch("(min|max)(Length|Items|Properties|Contains)", keyword):
            return f"expected at most {MAX_COUNT}, got {value}" if value > MAX_COUNT else ""
        if keyword == "multipleOf" and not _is_cheap_divisor(value):
            return f"expected at most {MAX_MULTIPLE_OF} or a power of ten, got {value}"
    return ""


def _pattern_problem(pattern: str) -> str:
    if _NUL.search(pattern):
        return "a pattern may not contain NUL"
    if len(pattern.encode()) > MAX_PATTERN_BYTES:
        return f"expected a pattern of at most {MAX_PATTERN_BYTES} bytes"
    return ""


def _literal_problem(values: object) -> str:
    if not isinstance(values, list):
        return "expected a list of values"
    if len(values) > MAX_ENUM_VALUES:
        return f"expected at most {MAX_ENUM_VALUES} values, got {len(values)}"
    sizes = [len(json.dumps(value, ensure_ascii=False).encode()) for value in values]
    if max(sizes, default=0) > MAX_LITERAL_BYTES:
        return f"expected a value of at most {MAX_LITERAL_BYTES} bytes, got {max(sizes)}"
    if sum(sizes) > MAX_ENUM_BYTES:
        return f"expected values of at most {MAX_ENUM_BYTES} bytes together, got {sum(sizes)}"
    return ""


def _is_cheap_divisor(value: float) -> bool:
    # The automaton of "divisible by n" has n states.
    return value <= MAX_MULTIPLE_OF or (isinstance(value, int) and str(value).strip("0") == "1")


def _kind(value: object) -> str:
    return {type(None): "null", str: "a string", list: "an array"}.get(type(value), "a number")


_DIALECTS = frozenset(
    f"{url}{end}"
    for url in (
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    )
    for end in ("", "#")
)


def _is_plainly_valid(schema: dict[str, object] | bool) -> bool:
    """Is a schema valid without doubt? Takes 10 us where jsonschema takes milliseconds.

    jsonschema_rs would fetch the meta-schema of a dialect that it does not know: it sees none.
    """
    is_known = all(isinstance(d, str) and d in _DIALECTS for d in _stated_dialects(schema))
    return is_known and bool(jsonschema_rs.meta.is_valid(schema))


def _stated_dialects(value: object) -> Iterator[object]:
    """Every `$schema` inside a JSON value, wherever it is."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "$schema" in node:
                yield node["$schema"]
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _dialect(schema: Any) -> Any:
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def _multiple_of(
    _: object, divisor: float, instance: object, __: object
) -> Iterator[jsonschema.exceptions.ValidationError]:
    """`multipleOf` in decimal: 0.07 is a multiple of 0.01, although float division disagrees."""
    if isinstance(instance, int | float) and not isinstance(instance, bool):
        try:
            is_multiple = Decimal(repr(instance)) % Decimal(repr(divisor)) == 0
        except InvalidOperation:  # infinite, or more digits than can tell
            is_multiple = False
        if not is_multiple:
            yield jsonschema.exceptions.ValidationError(f"{instance} is no multiple of {divisor}")


# The formats that no grammar enforces. All others are enforced, or mean nothing.
_FORMATS = jsonschema.FormatChecker(formats=("regex",))


@_FORMATS.checks("idn-hostname", raises=idna.IDNAError)
def _is_idn_hostname(instance: object) -> bool:
    """RFC 5890, and RFC 5893's rule for all labels of a name that has one written to the left."""
    if not isinstance(instance, str):
        return True
    labels = [idna.ulabel(label) for label in _FULL_STOPS.split(instance)]
    is_bidi = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in "".join(labels))
    idna.encode(instance)  # also how long the name may be
    return not is_bidi or all(idna.check_bidi(label, check_ltr=True) for label in labels)


@lru_cache(maxsize=256)
def _validator(text: str) -> tuple[object, Any]:
    schema = json.loads(text)
    extend: Any = jsonschema.validators.extend
    # An explicit registry: the default one fetches remote references. It knows the meta-schemas.
    registry: referencing.Registry[Any] = jsonschema_specifications.REGISTRY
    validator = extend(_dialect(schema), {"multipleOf": _multiple_of})
    return schema, validator(schema, registry=registry, format_checker=_FORMATS)
