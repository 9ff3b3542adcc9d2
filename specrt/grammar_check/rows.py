"""Rows of schemas with labelled instances: one JSON object a line, plain or gzipped.

A row has `id`, `source`, `dialect`, `schema` and `tests`, a list of `{data, valid, description}`;
other keys are ignored. Tests of a format are labelled as if `format` asserted.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specrt.errors import ConfigError

# What the JSON Schema test suite calls the drafts.
_DIALECTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
_FIELDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("id", str, "text"),
    ("source", str, "text"),
    ("dialect", str, "text"),
    ("schema", (dict, bool), "an object or a boolean"),
    ("tests", list, "a list"),
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One labelled instance.

    Attributes:
        data: the value.
        is_valid: its label.
        description: what it tests, for the report.
    """

    data: Any
    is_valid: bool
    description: str


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """One schema and its instances.

    Attributes:
        row_id: unique in its file.
        source: where it comes from; the table has one line for each.
        schema: with a `$schema` where the row names a dialect.
        instances: in file order.
    """

    row_id: str
    source: str
    schema: dict[str, Any] | bool
    instances: tuple[Instance, ...]


def read_rows(path: str, limit: int | None = None) -> list[SchemaRow]:
    """Read rows in file order.

    Args:
        path: .jsonl or .jsonl.gz file.
        limit: rows at most; None = all.

    Raises:
        ConfigError: the file cannot be read, or a line is no row; names file, line and field.
    """
    rows: list[SchemaRow] = []
    seen: set[str] = set()
    for number, line in enumerate(_lines(path), start=1):
        if limit is not None and len(rows) == limit:
            break
        if not line.strip():
            continue
        where = f"--schemas: {path}, line {number}"
        row = _row(line, where)
        if row.row_id in seen:
            raise ConfigError(f"{where}: 'id': {row.row_id!r} is there twice")
        seen.add(row.row_id)
        rows.append(row)
    if not rows:
        raise ConfigError(f"--schemas: {path}: no row in it")
    return rows


def _row(line: str, where: str) -> SchemaRow:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: expected a JSON object, got an error: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {type(raw).__name__}")
    for name, kind, expected in _FIELDS:
        if not isinstance(raw.get(name), kind):
            got = repr(raw[name])[:80] if name in raw else "nothing"
            raise ConfigError(f"{where}: {name!r}: expected {expected}, got {got}")
    schema, dialect = raw["schema"], raw["dialect"]
    if dialect and "://" not in dialect and dialect not in _DIALECTS:
        raise ConfigError(
            f"{where}: 'dialect': expected a URI or one of {', '.join(_DIALECTS)}, got {dialect!r}"
        )
    if dialect and isinstance(schema, dict) and "$schema" not in schema:
        schema = {"$schema": _DIALECTS.get(dialect, dialect), **schema}
    instances = tuple(
        _instance(test, f"{where}: 'tests[{index}]'") for index, test in enumerate(raw["tests"])
    )
    return SchemaRow(raw["id"], raw["source"], schema, instances)


def _instance(test: object, where: str) -> Instance:
    if not isinstance(test, dict) or "data" not in test:
        raise ConfigError(f"{where}: expected an object with 'data'")
    if not isinstance(test.get("valid"), bool):
        raise ConfigError(f"{where}: 'valid': expected true or false")
    return Instance(test["data"], test["valid"], str(test.get("description", "")))


def _lines(path: str) -> Iterator[str]:
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            yield from stream
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"--schemas: cannot read {path}: {error}") from None
