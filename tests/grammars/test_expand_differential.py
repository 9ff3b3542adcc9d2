"""The normal form against a validator: random schemas over all keywords, random instances."""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specrt.grammars.schema.arrange import contains
from specrt.grammars.schema.dialects import URIS, Dialect
from specrt.grammars.schema.expand import ImpossibleError, normalise
from specrt.grammars.schema.unsupported import UnsupportedError

NAMES = st.sampled_from(["a", "b", "c", "xa"])
PATTERNS = st.sampled_from(["^x", "a", "^[ab]$", "^(a|b)", "b$"])
SMALL = st.integers(0, 3)
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 2.5, -1, "", "a", "ab", "xa"])
LITERALS = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    st.dictionaries(NAMES, SCALARS, max_size=2),
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
INSTANCES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
VALIDATORS = {
    Dialect.DRAFT4: jsonschema.Draft4Validator,
    Dialect.DRAFT6: jsonschema.Draft6Validator,
    Dialect.DRAFT7: jsonschema.Draft7Validator,
    Dialect.DRAFT2019: jsonschema.Draft201909Validator,
    Dialect.DRAFT2020: jsonschema.Draft202012Validator,
}


def keywords(schemas: st.SearchStrategy[Any], dialect: Dialect) -> dict[str, Any]:
    """A strategy for the value of each keyword of a draft."""
    lists = st.lists(schemas, min_size=1, max_size=3)
    found: dict[str, Any] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(LITERALS, min_size=1, max_size=3),
        "minimum": st.integers(-1, 2),
        "maximum": st.integers(-1, 2),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": SMALL,
        "maxLength": SMALL,
        "pattern": PATTERNS,
        "items": schemas,
        "minItems": SMALL,
        "maxItems": SMALL,
        "uniqueItems": st.booleans(),
        "properties": st.dictionaries(NAMES, schemas, max_size=3),
        "patternProperties": st.dictionaries(PATTERNS, schemas, max_size=2),
        "additionalProperties": schemas | st.booleans(),
        "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "minProperties": SMALL,
        "maxProperties": SMALL,
        "allOf": lists,
        "anyOf": lists,
        "oneOf": lists,
        "not": schemas,
    }
    names = st.lists(NAMES, min_size=1, max_size=2, unique=True)
    if dialect >= Dialect.DRAFT6:
        found |= {
            "const": LITERALS,
            "contains": schemas,
            "propertyNames": schemas,
            "exclusiveMinimum": st.integers(-1, 2),
            "exclusiveMaximum": st.integers(-1, 2),
        }
    if dialect >= Dialect.DRAFT7:
        found |= {"if": schemas, "then": schemas, "else": schemas}
    if dialect <= Dialect.DRAFT7:
        found["dependencies"] = st.dictionaries(NAMES, schemas | names, max_size=2)
    if dialect <= Dialect.DRAFT2019:
        found["items"] = schemas | lists
        found["additionalItems"] = schemas | st.booleans()
    if dialect >= Dialect.DRAFT2019:
        found |= {
            "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
            "dependentSchemas": st.dictionaries(NAMES, schemas, max_size=2),
            "minContains": SMALL,
            "maxContains": SMALL,
            "unevaluatedProperties": schemas,
            "unevaluatedItems": schemas,
        }
    if dialect >= Dialect.DRAFT2020:
        found["prefixItems"] = lists
    return found


@st.composite
def schemas_of(draw: st.DrawFn, dialect: Dialect, depth: int = 2) -> Any:
    """A schema of at most `depth` levels."""
    if depth == 0 or draw(st.integers(0, 9)) == 0:
        leaf = {"type": draw(TYPES)} if draw(st.booleans()) else {"enum": [draw(LITERALS)]}
        booleans = [] if dialect == Dialect.DRAFT4 else [True, False]
        return draw(st.sampled_from([leaf, {}, {"$ref": "#/definitions/d"}, *booleans]))
    inner = schemas_of(dialect, depth - 1)
    values = keywords(inner, dialect)
    chosen = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3, unique=True))
    return {keyword: draw(values[keyword]) for keyword in chosen}


def verdicts(schema: Any, dialect: Dialect, instances: list[Any]) -> list[tuple[Any, bool]]:
    """Instances and whether they are valid."""
    validator = VALIDATORS[dialect](schema)
    return [(instance, validator.is_valid(instance)) for instance in instances]


def check(schema: Any, dialect: Dialect, instances: list[Any]) -> None:
    try:
        normal = normalise(schema, strict=True)
    except UnsupportedError as error:
        assert error.reason
        return
    except ImpossibleError:
        normal = None
    for instance, is_valid in verdicts(schema, dialect, instances):
        assert (normal is not None and contains(normal, instance)) == is_valid, instance


def check_lenient(schema: Any, dialect: Dialect, instances: list[Any]) -> None:
    try:
        normal = normalise(schema, strict=False)
    except ImpossibleError:
        assert not any(is_valid for _, is_valid in verdicts(schema, dialect, instances))
        return
    for instance, is_valid in verdicts(schema, dialect, instances):
        if is_valid:
            assert contains(normal, instance), instance
        elif not normal.findings:
            assert not contains(normal, instance), instance


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Dialect, list[Any]]:
    dialect = draw(st.sampled_from(list(VALIDATORS)))
    schema = draw(schemas_of(dialect))
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    # It may refer to itself, but not without a level between: validators do not survive that.
    inner = schemas_of(dialect, 1)
    definition = {"type": draw(st.lists(TYPES, min_size=1, max_size=4, unique=True))}
    for keyword in ("properties", "additionalProperties", "items", "uniqueItems", "required"):
        if draw(st.booleans()):
            definition[keyword] = draw(keywords(inner, dialect)[keyword])
    schema = {"$schema": URIS[dialect] + "#" * (dialect <= 7), **schema}
    schema["definitions"] = {"d": definition}
    return schema, dialect, draw(st.lists(INSTANCES, min_size=5, max_size=20))


SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(cases())
def test_strict_accepts_exactly_the_valid(case: tuple[Any, Dialect, list[Any]]) -> None:
    check(*case)


@SETTINGS
@given(cases())
def test_lenient_accepts_all_valid(case: tuple[Any, Dialect, list[Any]]) -> None:
    check_lenient(*case)
