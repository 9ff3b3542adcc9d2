"""The masks of the engines against each other, and against llguidance's own JSON schemas.

Along random walks over the real vocabulary three masks are compared: of the Lark text written from
the normal form, of `%json` with the schema as it came, and of the byte automaton. The automaton
must agree with the Lark text bit for bit. `%json` may differ as OURS_ONLY and JSON_ONLY say.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache

import jsonschema
import numpy as np
import pytest
from grammar_walks import ids_of, raw_json_lark, real_vocabulary

from specrt.grammars.lark_schema import schema_lark
from specrt.grammars.llguidance_engine import RefusedError, build_matcher
from specrt.grammars.regular.automaton import build
from specrt.grammars.regular.converter import to_regex
from specrt.grammars.regular.token_walk import TokenWalk
from specrt.grammars.schema.arrange import arrange, contains
from specrt.grammars.schema.expand import normalise
from specrt.grammars.schema.unsupported import UnsupportedError

SEPARATORS = {"item_separator": ", ", "key_separator": ": "}
_NUMBER = rb"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]*)?"


# --- what may differ --------------------------------------------------------------------------


def is_delete_character(before, token):
    """`%json` forbids U+007F in strings; JSON does not."""
    return b"\x7f" in token


def is_control_escape(before, token):
    """We write characters below U+0020 as \\u00xx; `%json` could only in both cases of xx."""
    backslashes = before[len(before.rstrip(b"\\")) :]
    return re.search(rb"\\u", backslashes + token) is not None


def number_around(before, token):
    """The last number that the token changes, b"" if it changes none."""
    found = b""
    text = before + token
    for match in re.finditer(_NUMBER, text):
        if match.end() > len(before):
            found = match[0]
    return found


def is_long_number(before, token):
    """We stop at 64 digits before the point and 20 behind it."""
    digits, _, fraction = re.split(rb"[eE]", number_around(before, token))[0].partition(b".")
    return len(digits.lstrip(b"-")) > 64 or len(fraction) > 20


def is_large_exponent(before, token):
    """We stop where a double does: no number is read as infinite."""
    _, _, exponent = re.sub(rb"[eE]", b"e", number_around(before, token)).partition(b"e")
    return len(exponent.lstrip(b"+-")) > 2


def is_negative_zero_integer(before, token):
    """`-0` is no integer of ours; `%json` takes it."""
    return number_around(before, token) == b"-0"


def is_negative_zero_at_a_bound(before, token):
    """`-0.0` is not below 0; `%json` forbids a sign where the minimum is 0."""
    start = len(before) - len(re.search(rb"-?(?:0(?:\.0*)?)?$", before)[0])
    return re.match(rb"[ \[]*-(?:0(?:\.0*)?)?(?![0-9.])", (before + token)[start:]) is not None


OURS_ONLY = (is_delete_character, is_control_escape, is_negative_zero_at_a_bound)
JSON_ONLY = (is_long_number, is_large_exponent, is_negative_zero_integer)


# --- schemas ----------------------------------------------------------------------------------


def random_schema(rng, depth=0):
    """A schema that llguidance takes, of the kind that tools have."""
    kinds = ["string", "integer", "number", "boolean", "enum", "bounded", "text", "null"]
    if depth < 3:
        kinds += ["object", "object", "object", "array", "array", "union", "tuple"]
    if depth == 0:
        kinds = ["object", "object", "object", "array", "union", "reference"]
    return _KINDS[rng.choice(kinds)](rng, depth)


def _object(rng, depth):
    names = rng.sample(_NAMES, rng.randint(0, 5))
    schema = {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
    }
    other = rng.random()
    if other < 0.6:
        schema["additionalProperties"] = False
    elif other < 0.8:
        schema["additionalProperties"] = random_schema(rng, depth + 1)
    return schema


def _array(rng, depth):
    schema = {"type": "array", "items": random_schema(rng, depth + 1)}
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        schema["maxItems"] = rng.randint(schema.get("minItems", 0), 5)
    return schema


def _tuple(rng, depth):
    items = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    rest = rng.choice([False, random_schema(rng, depth + 1)])
    return {
        "type": "array",
        "prefixItems": items,
        "items": rest,
        "minItems": rng.randint(0, len(items)),
    }


def _object_branches(branches):
    for branch in branches:
        if branch.get("type") == "object":
            yield branch
        yield from _object_branches(branch.get("anyOf", ()))


def _union(rng, depth):
    branches = [random_schema(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    order: dict[str, None] = {}
    for branch in _object_branches(branches):
        # See test_a_union_has_one_order_of_properties.
        listed = branch["properties"]
        order.update(dict.fromkeys(listed))
        branch["properties"] = {name: listed[name] for name in order if name in listed}
        branch["additionalProperties"] = False
    return {"anyOf": branches}


def _reference(rng, depth):
    node = {
        "type": "object",
        "properties": {
            "value": random_schema(rng, depth + 1),
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def _enum(rng, depth):
    values = ["a", "ab", "abc", "été", 'q"', "", 1, 12, 1.5, None, True, "http://x/y"]
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def _bounded(rng, depth):
    low = rng.choice([-20, -1, 0, 1, 7, 100])
    schema = {"type": "integer", "minimum": low}
    if rng.random() < 0.7:
        schema["maximum"] = low + rng.choice([0, 5, 60, 1234])
    return schema


def _text(rng, depth):
    length = rng.randint(0, 4)
    return rng.choice([
        {"type": "string", "minLength": length, "maxLength": length + rng.randint(0, 9)},
        {"type": "string", "minLength": length},
        {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"},
        {"type": "string", "pattern": "^(foo|bar)"},
    ])  # fmt: skip


_NAMES = ["name", "names", "id", "x", 'a"b', "été", "zip code", "n/a"]

_KINDS = {
    "string": lambda rng, depth: {"type": "string"},
    "integer": lambda rng, depth: {"type": "integer"},
    "number": lambda rng, depth: {"type": "number"},
    "boolean": lambda rng, depth: {"type": "boolean"},
    "null": lambda rng, depth: {"type": ["null", "string"]},
    "enum": _enum,
    "bounded": _bounded,
    "text": _text,
    "object": _object,
    "array": _array,
    "tuple": _tuple,
    "union": _union,
    "reference": _reference,
}


# --- walks ------------------------------------------------------------------------------------


@cache
def text_tokens():
    """A mask row of the tokens that are no special ones."""
    vocabulary = real_vocabulary()
    is_text = np.ones(vocabulary.num_words * 32, dtype=bool)
    is_text[list(vocabulary.special_ids)] = False
    return np.packbits(is_text, bitorder="little").view(np.int32)


class Walk:
    """One schema in three engines that go the same way."""

    def __init__(self, schema):
        self.vocabulary = real_vocabulary()
        normal = normalise(schema, strict=True)
        self.lark = schema_lark(normal, **SEPARATORS, then_anything=False)
        self.ours = build_matcher(self.vocabulary, self.lark)
        raw = raw_json_lark(schema)
        self.theirs = build_matcher(self.vocabulary, raw)
        self.automaton = self.tokens = None
        self.state = 0
        try:
            self.automaton = build(to_regex(normal, **SEPARATORS))
        except UnsupportedError:
            pass
        else:
            self.tokens = TokenWalk(self.automaton.table, self.vocabulary)
            self.state = self.automaton.start
        self.text = b""
        self.texts = text_tokens()

    def masks(self):
        """Mask rows of the Lark text and of `%json`: int32 [num_words], special tokens left out."""
        rows = []
        for matcher in (self.ours, self.theirs):
            row = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)
            assert not matcher.is_error(), matcher.get_error()
            rows.append(row[: self.vocabulary.num_words] & self.texts)
        return rows

    def compare(self):
        """What both allow: ascending ids."""
        ours, theirs = self.masks()
        for row, reasons in ((ours & ~theirs, OURS_ONLY), (theirs & ~ours, JSON_ONLY)):
            unexplained = [
                token
                for token in self.tokens_of(row)
                if not any(reason(self.text, token) for reason in reasons)
            ]
            assert unexplained == [], (reasons[0].__name__, self.text, unexplained[:20], self.lark)
        assert self.ours.is_accepting() == self.theirs.is_accepting(), self.text
        if self.tokens is not None:
            regular = self.tokens.mask(self.state)
            assert (regular == ours).all(), (self.text, self.tokens_of(regular ^ ours)[:20])
            assert bool(self.automaton.final[self.state]) == self.ours.is_accepting()
        return ids_of(ours & theirs)

    def tokens_of(self, row):
        return [self.vocabulary.token_bytes[token_id] for token_id in ids_of(row)]

    def step(self, token_id):
        self.ours.consume_token(token_id)
        self.theirs.consume_token(token_id)
        token = self.vocabulary.token_bytes[token_id]
        if self.tokens is not None:
            self.state = self.tokens.walk(self.state, token)
        self.text += token

    def go(self, rng, max_steps):
        """Walk at random, towards the end; the text."""
        for step in range(max_steps):
            ids = self.compare()
            if not ids or (self.ours.is_accepting() and rng.random() < 0.3 + step / max_steps):
                break
            closing = [i for i in ids if self.vocabulary.token_bytes[i].strip() in _CLOSING]
            late = rng.random() < 0.2 + step / max_steps
            self.step(rng.choice(closing if closing and late else ids))
        return self.text


_CLOSING = (b'"', b"}", b"]", b'"}', b'",', b",")


@pytest.mark.parametrize("seed", range(13))
def test_masks_are_those_of_json_and_of_the_automaton(seed):
    rng = random.Random(seed)
    compared = regular = 0
    for _ in range(12):
        schema = random_schema(rng)
        try:
            walk = Walk(schema)
        except RefusedError:
            continue
        compared += 1
        regular += walk.tokens is not None
        walk.go(rng, 20)
    assert compared >= 10
    assert regular >= 4


# --- each difference --------------------------------------------------------------------------

INTEGER, NUMBER, STRING = ({"type": name} for name in ("integer", "number", "string"))
ORDERS = {
    "anyOf": [
        {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        {"properties": {"b": {}, "c": {}, "a": {}}, "required": ["a", "b", "c"]},
    ],
    "type": "object",
}
DIFFERENCES = [
    # (schema, text, is it ours alone?, which reason explains it in a walk)
    (STRING, '"a\x7f"', True, is_delete_character),
    (STRING, r'"a\u001f"', True, is_control_escape),
    (INTEGER, "1" * 65, False, is_long_number),
    (NUMBER, "0." + "1" * 21, False, is_long_number),
    (NUMBER, "1e400", False, is_large_exponent),
    (NUMBER, "1E+309", False, is_large_exponent),
    (INTEGER, "-0", False, is_negative_zero_integer),
    ({**NUMBER, "minimum": 0}, "-0", True, is_negative_zero_at_a_bound),
    ({**NUMBER, "minimum": 0}, "-0.0", True, is_negative_zero_at_a_bound),
    # Formats are written from their RFCs here and there.
    ({**STRING, "format": "date-time"}, '"1998-12-30T23:59:60Z"', False, None),
]


@pytest.mark.parametrize(("schema", "text", "is_ours_alone", "reason"), DIFFERENCES)
def test_differences_from_json(schema, text, is_ours_alone, reason):
    walk = Walk(schema)
    data = text.encode()
    verdicts = [takes(matcher, data) for matcher in (walk.ours, walk.theirs)]
    assert verdicts == [is_ours_alone, not is_ours_alone]
    if reason is not None:
        # The byte from which on only one of the two can follow.
        longest = min(common(matcher, data) for matcher in (walk.ours, walk.theirs))
        assert reason(data[:longest], data[longest : longest + 1])


def test_a_union_has_one_order_of_properties():
    walk = Walk(ORDERS)
    text = b'{"b": 1, "c": 1, "a": 1}'
    assert takes(walk.theirs, text)
    assert not takes(walk.ours, text)
    assert takes(walk.ours, b'{"a": 1, "b": 1, "c": 1}')


def common(matcher, data):
    """How many bytes of a text the matcher can follow."""
    length = len(data)
    while length and not follows(matcher, data[:length]):
        length -= 1
    return length


def follows(matcher, data):
    ids = list(real_vocabulary().pieces(data))
    return matcher.deep_copy().validate_tokens(ids) == len(ids)


def takes(matcher, data):
    """Is a text a whole value?"""
    copy = matcher.deep_copy()
    ids = list(real_vocabulary().pieces(data))
    if copy.validate_tokens(ids) < len(ids):
        return False
    copy.consume_tokens(ids)
    return copy.is_accepting()


# --- instances --------------------------------------------------------------------------------


def random_instance(rng, schema, root, depth=0):
    """A value that a schema of `random_schema` may take, now and then one that it does not."""
    if "$ref" in schema:
        schema = root["$defs"]["node"]
    if "anyOf" in schema:
        return random_instance(rng, rng.choice(schema["anyOf"]), root, depth + 1)
    if rng.random() < 0.05 or depth > 8:
        return rng.choice([None, False, 1, 0.5, "", "a", [], {}, ["a"], {"x": "a"}])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            members = {
                name: random_instance(rng, part, root, depth + 1)
                for name, part in schema["properties"].items()
                if rng.random() < (0.95 if name in schema.get("required", ()) else 0.4)
            }
            if rng.random() < 0.3:
                other = schema.get("additionalProperties") or STRING
                members["other"] = random_instance(rng, other, root, depth + 1)
            return dict(rng.sample(list(members.items()), len(members)))
        case "array":
            parts = schema.get("prefixItems", [])
            rest = schema.get("items") or STRING
            length = rng.randint(schema.get("minItems", 0), schema.get("maxItems", 4) + 1)
            return [
                random_instance(rng, part, root, depth + 1)
                for part in [*parts, *[rest] * 9][:length]
            ]
        case "integer":
            low = schema.get("minimum", -5)
            return rng.randint(low, schema.get("maximum", low + 9) + 1)
        case "number":
            return rng.choice([0, -3, 2.5, 1e-7, 1.25e20])
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return rng.choice(["", "a", "ab\n", "abcd", "foo x", "ab-1", "bar", "\x7f\x01é𝄞"])
        case _:
            return rng.choice([None, "a"])


@pytest.mark.parametrize("seed", range(8))
def test_accepts_what_the_normal_form_holds(seed):
    rng = random.Random(1000 + seed)
    counts = {True: 0, False: 0}
    for _ in range(12):
        schema = random_schema(rng)
        normal = normalise(schema, strict=True)
        lark = schema_lark(normal, **SEPARATORS, then_anything=False)
        matcher = build_matcher(real_vocabulary(), lark)
        for _ in range(12):
            value = random_instance(rng, schema, schema)
            is_inside = contains(normal, value)
            arranged = arrange(normal, value) if is_inside else value
            text = json.dumps(arranged, ensure_ascii=False)
            assert takes(matcher, text.encode()) == is_inside, (schema, text)
            assert is_inside == jsonschema.Draft202012Validator(schema).is_valid(value)
            counts[is_inside] += 1
    assert min(counts.values()) >= 20
