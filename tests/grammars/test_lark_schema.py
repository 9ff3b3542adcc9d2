from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from grammar_walks import ids_of, real_vocabulary, tiny_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.grammars.lark_schema import schema_lark, write_rules
from specrt.grammars.llguidance_engine import build_matcher
from specrt.grammars.schema.normal import (
    ArrayShape,
    BooleanShape,
    Contains,
    Extra,
    NormalSchema,
    NullShape,
    ObjectShape,
    Property,
    Rule,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

NULL, STRING, NUMBER = (NullShape(),), (StringSet(),), (NumberSet(),)
INTEGER = (NumberSet(is_integer=True),)
BOOLEAN = (BooleanShape(frozenset({True, False})),)
SEPARATORS = {"item_separator": ", ", "key_separator": ": "}


def normal(*rules):
    """A schema of rules 0, 1, ...; the first is the root."""
    return NormalSchema({i: Rule(f"/{i}", tuple(shapes)) for i, shapes in enumerate(rules)}, 0)


def lark(schema, *, then_anything=False):
    return schema_lark(schema, **SEPARATORS, then_anything=then_anything)


def strings(*values):
    return StringSet(values=values)


def numbers(*spellings):
    return NumberSet(values=spellings)


def closed(*names, rule=1, required=(), **limits):
    listed = tuple(Property(name, rule, name in required) for name in names)
    return ObjectShape(listed, **limits)


def accepts(matcher, text, vocabulary=None):
    """Is `text` a whole value? Leaves the matcher as it was."""
    copy = matcher.deep_copy()
    token_ids = list((vocabulary or tiny_vocabulary()).pieces(text.encode()))
    if copy.validate_tokens(token_ids) < len(token_ids):
        assert not copy.is_error(), copy.get_error()
        return False
    copy.consume_tokens(token_ids)
    assert not copy.is_error(), copy.get_error()
    return copy.is_accepting()


def compiled(schema, **options):
    return build_matcher(tiny_vocabulary(), lark(schema, **options))


def spelled(value):
    return json.dumps(value, ensure_ascii=False)


def fits(rules, rule_id, value):
    """What the normal form says, read off its definition."""
    return any(_fits_shape(rules, shape, value) for shape in rules[rule_id].shapes)


def _fits_shape(rules, shape, value):
    match shape:
        case NullShape():
            return value is None
        case BooleanShape(values):
            return isinstance(value, bool) and value in values
        case NumberSet():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and shape.contains(value)
        case StringSet():
            return isinstance(value, str) and shape.contains(value)
        case ArrayShape():
            return isinstance(value, list) and _fits_array(rules, shape, value)
        case ObjectShape():
            return isinstance(value, dict) and _fits_object(rules, shape, value)
    raise AssertionError(shape)


def _fits_array(rules, shape, items):
    if len(items) < shape.min_items or len(items) > (shape.max_items or len(items)):
        return False
    if shape.max_items == 0 and items:
        return False
    wanted = itertools.chain(shape.prefix, itertools.repeat(shape.rest))
    for item, rule_id in zip(items, wanted, strict=False):
        if rule_id is None or not fits(rules, rule_id, item):
            return False
    if shape.distinct and len({spelled(item) for item in items}) < len(items):
        return False
    if shape.contains is None:
        return True
    hits = sum(fits(rules, shape.contains.hit, item) for item in items)
    maximum = shape.contains.maximum
    return shape.contains.minimum <= hits and (maximum is None or hits <= maximum)


def _fits_object(rules, shape, members):
    order = [listed.name for listed in shape.properties]
    known = [name for name in members if name in order]
    if known != sorted(known, key=order.index) or list(members)[: len(known)] != known:
        return False
    if any(listed.required and listed.name not in members for listed in shape.properties):
        return False
    maximum = shape.max_properties
    if len(members) < shape.min_properties or (maximum is not None and len(members) > maximum):
        return False
    listed_rules = {listed.name: listed.rule for listed in shape.properties}
    for name, value in members.items():
        options = [listed_rules[name]] if name in listed_rules else []
        if not options:
            options = [extra.rule for extra in shape.extras if extra.keys.contains(name)]
        if not any(fits(rules, rule_id, value) for rule_id in options):
            return False
    return True


NAMES = ("a", "b", "ab", 'q"/\\', "é\x7f")
LEAVES = [
    NullShape(),
    BooleanShape(frozenset({True})),
    BooleanShape(frozenset({True, False})),
    NumberSet(),
    NumberSet(is_integer=True),
    NumberSet(is_integer=True, minimum=Fraction(-3), maximum=Fraction(12)),
    NumberSet(values=("1", "1.5", "10", "-1")),
    StringSet(),
    StringSet(min_length=1, max_length=2),
    StringSet(excluded_values=frozenset({"", "a", "ab"})),
    StringSet(values=("", "a", "ab", 'q"/\\')),
]
FINITE = (BooleanShape(frozenset({True, False})), NullShape(), strings("a", "b"))


@st.composite
def arrays(draw, ids):
    prefix = tuple(draw(st.lists(st.sampled_from(ids), max_size=3)))
    rest = draw(st.sampled_from([None, *ids]))
    most = len(prefix) if rest is None else 5
    max_items = draw(st.sampled_from([None, *range(most + 1)]))
    least = draw(st.integers(0, most if max_items is None else max_items))
    return ArrayShape(prefix, rest, least, max_items)


@st.composite
def objects(draw, ids):
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    listed = tuple(
        Property(name, draw(st.sampled_from(ids)), draw(st.booleans())) for name in names
    )
    keys = StringSet(excluded_values=frozenset(names)) if names else StringSet()
    extras = (Extra(keys, draw(st.sampled_from(ids))),) if draw(st.booleans()) else ()
    fewest, most = sum(p.required for p in listed), len(listed) + 2 * len(extras)
    maximum = draw(st.one_of(st.none(), st.integers(fewest, most)))
    minimum = draw(st.integers(0, most if maximum is None else maximum))
    return ObjectShape(listed, extras, minimum, maximum)


@st.composite
def schemas(draw):
    """Rules that refer to later ones, and optional places also to the root."""
    count = draw(st.integers(1, 5))
    rules = []
    for index in range(count):
        ids = list(range(index + 1, count + 1))
        shapes = draw(
            st.lists(
                st.one_of(st.sampled_from(LEAVES), arrays(ids), objects(ids)),
                min_size=1,
                max_size=3,
            )
        )
        rules.append(shapes)
    if draw(st.booleans()):
        rules[-1].append(ArrayShape((), 0))
    return normal(*rules, draw(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=2)))


def sample(rng, rules, rule_id, depth=0):
    """A value of a rule, or something near one."""
    if rng.random() < 0.03 or depth > 6:
        return rng.choice([None, True, 0, 1, 10, 1.5, "", "a", "abc", [], {}])
    shape = rng.choice(rules[rule_id].shapes)
    match shape:
        case NullShape():
            return None
        case BooleanShape(values):
            return rng.choice(sorted(values))
        case NumberSet():
            return rng.choice([0, 1, -1, 12, 13, 1.5, -0.25, 100])
        case StringSet():
            return rng.choice(["", "a", "ab", "abc", 'q"/\\', "\x7f\n\x01é", "𝄞"])
        case ArrayShape():
            most = shape.max_items if shape.max_items is not None else shape.min_items + 3
            length = max(rng.randint(shape.min_items, most) + rng.choice([0, 0, 0, 0, 1, -1]), 0)
            wanted = [*shape.prefix, *[shape.rest] * length][:length]
            return [
                None if item is None else sample(rng, rules, item, depth + 1) for item in wanted
            ]
        case ObjectShape():
            members = {
                listed.name: sample(rng, rules, listed.rule, depth + 1)
                for listed in shape.properties
                if rng.random() < (0.97 if listed.required else 0.5)
            }
            for extra in shape.extras:
                for name in rng.sample(["x", "y", "a", ""], rng.randint(0, 2)):
                    if name not in members:
                        members[name] = sample(rng, rules, extra.rule, depth + 1)
            if rng.random() < 0.05:
                members = dict(rng.sample(list(members.items()), len(members)))
            return members
    raise AssertionError(shape)


@given(schemas(), st.randoms(use_true_random=False))
@settings(max_examples=90, deadline=None)
def test_accepts_what_the_normal_form_says(schema, rng):
    matcher = compiled(schema)
    for _ in range(25):
        value = sample(rng, schema.rules, 0)
        assert accepts(matcher, spelled(value)) == fits(schema.rules, 0, value), value


def test_samples_are_both_inside_and_outside():
    rng, verdicts = random.Random(0), Counter()
    schema = normal(
        [closed("a", "b", required=("b",)), ArrayShape((1,), 2, 1, 3)],
        [StringSet(min_length=1, max_length=2), NullShape()],
        [NumberSet(values=("1", "10"))],
    )
    for _ in range(300):
        verdicts[fits(schema.rules, 0, sample(rng, schema.rules, 0))] += 1
    assert min(verdicts[True], verdicts[False]) > 60


SHARED_BEGINNINGS = {
    "objects with different first keys": (
        [[closed("a", required=("a",)), closed("ab", required=("ab",)), closed("b", rule=2)],
         NULL, STRING],
        ['{"a": null}', '{"ab": null}', '{"b": "a"}', "{}"],
        ['{"a": "a"}', '{"b": null}', '{"ab": null, "a": null}'],
    ),
    "an empty object and others": (
        [[closed(), closed("a", required=("a",))], NULL],
        ["{}", '{"a": null}'],
        ['{"a": null, }', '{"b": null}', "{ }"],
    ),
    "listed and free strings": (
        [[strings("a", "ab", "a b"), StringSet(min_length=3)]],
        ['"a"', '"ab"', '"a b"', '"abc"', '"a b c"', r'"a\"b"'],
        ['""', '"b"', '"a "', '"ac"'],
    ),
    "integers and numbers": (
        [[NumberSet(is_integer=True), numbers("1.5", "15.5", "1e3")]],
        ["1", "1.5", "15", "15.5", "1e3", "100"],
        ["1.", "1.55", "15.", "1e", "1e33", "01"],
    ),
    "listed numbers in an array": (
        [[ArrayShape((), 1, 0, 3)], [numbers("1", "10", "100", "1.25")]],
        ["[]", "[1]", "[10, 1]", "[1.25, 100, 1]"],
        ["[1.2]", "[101]", "[1, 1, 1, 1]", "[1,1]", "[1, ]", "[, 1]", "[1 ]"],
    ),
    "arrays of different items": (
        [[ArrayShape((), 1), ArrayShape((2, 2), None, 2, 2), ArrayShape((), None)],
         STRING, INTEGER],
        ["[]", '["a"]', '["a", "b", "c"]', "[1, 2]"],
        ["[1]", "[1, 2, 3]", '["a", 1]'],
    ),
    "listed and other keys": (
        [[ObjectShape((Property("a", 1, False), Property("ab", 1, True)),
                      (Extra(StringSet(excluded_values=frozenset({"a", "ab"})), 2),))],
         NULL, INTEGER],
        ['{"ab": null}', '{"a": null, "ab": null}', '{"ab": null, "abc": 1, "": 2}'],
        ['{"ab": 1}', '{"ab": null, "a": 1}', '{"a": 1, "ab": null}', '{"abc": 1}'],
    ),
    "words": (
        [[NullShape(), BooleanShape(frozenset({False})), strings("null", "false")]],
        ["null", "false", '"null"', '"false"'],
        ["true", "nul", "falsenull", '"true"'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED_BEGINNINGS)
def test_unions_that_share_beginnings(name):
    rules, inside, outside = SHARED_BEGINNINGS[name]
    matcher = compiled(normal(*rules))
    assert [text for text in inside if not accepts(matcher, text)] == []
    assert [text for text in outside if accepts(matcher, text)] == []
    if real := real_vocabulary():
        # Tokens of several characters are cut in other places.
        real_matcher = build_matcher(real, lark(normal(*rules)))
        for text in inside + outside:
            ids = list(real.encode(text.encode()))
            is_accepted = real_matcher.validate_tokens(ids) == len(ids)
            assert is_accepted or text not in inside


CONTAINS = [
    (minimum, maximum, has_miss)
    for minimum in (0, 1, 2)
    for maximum in (None, 1, 2, 3)
    for has_miss in (True, False)
    if maximum is None or (has_miss and maximum >= minimum)
]


@pytest.mark.parametrize(("minimum", "maximum", "has_miss"), CONTAINS)
@pytest.mark.parametrize(("least", "most"), [(0, None), (3, None), (0, 3), (2, 4)])
def test_contains(minimum, maximum, has_miss, least, most):
    contains = Contains(2, 3 if has_miss else None, minimum, maximum)
    shape = ArrayShape((), 1, least, most, contains)
    schema = normal([shape], [*STRING, *INTEGER], INTEGER, STRING)
    matcher = compiled(schema)
    for length in range(6):
        for items in itertools.product([1, "a"], repeat=length):
            value = list(items)
            assert accepts(matcher, spelled(value)) == fits(schema.rules, 0, value), value


@pytest.mark.parametrize(("least", "most"), [(0, None), (2, None), (0, 2), (1, 3)])
@pytest.mark.parametrize("prefix", [(), (2,), (1, 2)])
def test_distinct_items(least, most, prefix):
    shape = ArrayShape(prefix, 1, least, most, distinct=True)
    schema = normal([shape], FINITE, [strings("b", "c")])
    matcher = compiled(schema)
    for length in range(5):
        for items in itertools.product([True, False, None, "a", "b", "c"], repeat=length):
            value = list(items)
            assert accepts(matcher, spelled(value)) == fits(schema.rules, 0, value), value


def test_equal_numbers_are_not_distinct():
    matcher = compiled(normal([ArrayShape((), 1, distinct=True)], [numbers("1", "1.0", "2")]))
    assert accepts(matcher, "[1.0, 2]")
    assert not accepts(matcher, "[1, 1.0]")


def test_distinct_items_that_also_contain():
    shape = ArrayShape((), 1, 0, None, Contains(2, None, 2, None), distinct=True)
    matcher = compiled(normal([shape], [strings("a", "b", "c")], [strings("a", "b")]))
    assert accepts(matcher, '["c", "a", "b"]')
    assert accepts(matcher, '["b", "a"]')
    assert not accepts(matcher, '["c", "a"]')


@pytest.mark.parametrize("required", ["", "a", "b", "c", "ab", "ac", "bc", "abc"])
@pytest.mark.parametrize(
    "limits", [(0, None), (1, None), (2, None), (0, 2), (2, 3), (3, 4), (0, 0)]
)
@pytest.mark.parametrize("has_extras", [False, True])
def test_properties_are_counted(required, limits, has_extras):
    minimum, maximum = limits
    listed = tuple(Property(name, 1, name in required) for name in "abc")
    extras = (Extra(StringSet(excluded_values=frozenset("abc")), 1),) if has_extras else ()
    shape = ObjectShape(listed, extras, minimum, maximum)
    schema = normal([shape], NULL)
    if maximum is not None and maximum < len(required):
        with pytest.raises(UnsupportedError, match="no object has so many"):
            lark(schema)
        return
    matcher = compiled(schema)
    for names in itertools.chain.from_iterable(
        itertools.combinations("abcxy", n) for n in range(6)
    ):
        value = dict.fromkeys(names)
        assert accepts(matcher, spelled(value)) == fits(schema.rules, 0, value), value


def test_recursion():
    schema = normal(
        [closed("name", "children", rule=2, required=("name",))],
        [ArrayShape((), 0)],
        [*STRING, ArrayShape((), 0)],
    )
    matcher = compiled(schema)
    value = {"name": "a", "children": []}
    for _ in range(40):
        value = {"name": "b", "children": [value]}
    assert accepts(matcher, spelled(value))
    value["name"] = None
    assert not accepts(matcher, spelled(value))


@pytest.mark.parametrize("compact", [True, False])
def test_separators(compact):
    separators = (",", ":") if compact else (", ", ": ")
    schema = normal([closed("a", "b", rule=1)], [ArrayShape((), 2)], INTEGER)
    text = schema_lark(
        schema, item_separator=separators[0], key_separator=separators[1], then_anything=False
    )
    matcher = build_matcher(tiny_vocabulary(), text)
    value = {"a": [1, 2], "b": []}
    assert accepts(matcher, json.dumps(value, separators=separators))
    assert not accepts(
        matcher, json.dumps(value, separators=((", ", ": ") if compact else (",", ":")))
    )


def test_anything_may_follow():
    matcher = compiled(normal([closed("a", rule=1)], STRING), then_anything=True)
    for text in ("{}", '{"a": "b"}'):
        for rest in ("", "}", "\n</tool_call>", "\n{}", " x" * 20, "\x00é"):
            assert accepts(matcher, text + rest)
    assert not accepts(matcher, '{"b": "b"}\n')
    real = real_vocabulary()
    matcher = build_matcher(real, lark(normal([closed("a", rule=1)], STRING), then_anything=True))
    matcher.consume_tokens(list(real.pieces(b'{"a": "b')))
    allowed = ids_of(np.frombuffer(matcher.compute_bitmask(), dtype=np.int32))
    ends = {real.token_bytes[i] for i in allowed if i not in real.special_ids}
    with_more = {text for text in ends if text.startswith(b'"}')}
    assert with_more == {text for text in real.token_bytes if text.startswith(b'"}') and utf8(text)}
    assert len(with_more) > 1


def utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_schemas_side_by_side():
    first = write_rules(normal([closed("a", rule=1)], STRING), **SEPARATORS, prefix="a_")
    second = write_rules(normal([ArrayShape((), 1)], INTEGER), **SEPARATORS, prefix="b_")
    text = f'start: "A" {first.root} | "B" {second.root}\n{first.text}{second.text}'
    matcher = build_matcher(tiny_vocabulary(), text)
    assert accepts(matcher, 'A{"a": "b"}')
    assert accepts(matcher, "B[1, 2]")
    assert not accepts(matcher, "A[1, 2]")
    names = [line.partition(":")[0] for line in (first.text + second.text).splitlines()]
    assert len(names) == len(set(names))


def test_a_typical_tool_is_small():
    listed = tuple(Property(f"name{i}", 1 + i % 4, i < 3) for i in range(10))
    rules = [[ObjectShape(listed)], STRING, NUMBER, [ArrayShape((), 1)], [*STRING, *NULL]]
    lines = lark(normal(*rules)).splitlines()
    assert len(lines) <= 10
    assert sum('/"' in line for line in lines) == 1  # one terminal for every free string


# --- numbers without a regex ------------------------------------------------------------------


def test_multiples_without_a_regex():
    multiples = NumberSet(is_integer=True, minimum=Fraction(-2000), multiple_of=Fraction(997))
    with pytest.raises(UnsupportedError):
        multiples.regex()
    matcher = compiled(normal([ArrayShape((), 1)], [multiples, *STRING]))
    for number in (0, 997, -997, -1994, 997 * 12345678, 997 * 9_000_000_000_000_000):
        assert accepts(matcher, f'["a", {number}, "b"]'), number
    for number in (1, 998, -2991, 997 * 12345678 + 1, 997 * 10**17, 997.0):
        assert not accepts(matcher, f'["a", {number}, "b"]'), number


@pytest.mark.parametrize(
    "multiples",
    [
        NumberSet(is_integer=True, multiple_of=Fraction(99991)),
        NumberSet(is_integer=True, multiple_of=Fraction(997), not_multiple_of=(Fraction(2),)),
        NumberSet(is_integer=True, multiple_of=Fraction(997), minimum=Fraction(2**53 + 1)),
        NumberSet(multiple_of=Fraction(997, 10)),
    ],
)
def test_multiples_that_are_refused(multiples):
    with pytest.raises(UnsupportedError) as caught:
        lark(normal([ArrayShape((), 1)], [multiples]))
    assert caught.value.pointer == "/1"


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([[]], "nothing satisfies"),
        ([[closed("\ud800", rule=1)], STRING], "surrogate"),
        ([[ArrayShape((), 1, distinct=True)], STRING], "uniqueItems"),
        ([[ArrayShape((), 1, distinct=True)], [strings(*map(str, range(20)))]], "too much"),
        ([[ArrayShape((), 1, 2, 1)], STRING], "so many items"),
        ([[ArrayShape((1,), 1, contains=Contains(1, None, 1, None))], STRING], "contains"),
        ([[closed("a", min_properties=2)], STRING], "so many"),
        ([[ArrayShape((), 1, 0, 999, Contains(1, None, 500, None))], STRING], "too much"),
        ([[closed(*map(str, range(601)))], STRING], "more than 600"),
        ([[closed(*map(str, range(301))), closed(*map(str, range(300)))], STRING], "more than 600"),
        ([[strings("x" * 40_001)]], "40,000 bytes"),
        ([[strings(*map(str, range(5001)))]], "5,000 strings"),
    ],
)
def test_refusals(rules, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        lark(normal(*rules))
    assert caught.value.pointer == "/0"


# --- what llguidance bears --------------------------------------------------------------------


NAMES_100 = [f"n{i}" for i in range(100)]
NAMES_601 = [f"name{i}" for i in range(601)]
NOT_ABC = StringSet(excluded_values=frozenset({"abc"}))


def walk(matcher, vocabulary, text):
    """Masks all along a text: seconds each."""
    seconds = []
    for token_id in vocabulary.pieces(text.encode()):
        start = time.perf_counter()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)
        seconds.append(time.perf_counter() - start)
        assert not matcher.is_error(), matcher.get_error()
        assert bits[token_id >> 5] >> (token_id & 31) & 1
        matcher.consume_token(token_id)
    assert matcher.is_accepting()
    return seconds


@pytest.mark.parametrize("required", [(), ("name200",), ("name0", "name399")])
def test_four_hundred_properties(required):
    vocabulary = real_vocabulary()
    names = [f"name{i}" for i in range(400)]
    matcher = build_matcher(
        vocabulary, lark(normal([closed(*names, required=required)], [strings("", "x")]))
    )
    for written in (names, [*required] or names[-1:]):
        text = spelled(dict.fromkeys(written, ""))
        assert np.median(walk(matcher.deep_copy(), vocabulary, text)) < 0.005


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ([[closed(*NAMES_601[:600])], STRING], {"name599": ""}),
        ([[closed(*NAMES_100, min_properties=2)], NULL], {"n7": None, "n9": None}),
        ([[strings(*(f"value {i * 7919}" for i in range(5000)))]], "value 7919"),
        ([[strings("word " * 8_000)]], "word " * 8_000),
        ([[strings("word " * 8_000), StringSet(max_length=20)]], "word " * 2),
        ([[closed(*NAMES_601, required=["name600"])], STRING], {"name600": ""}),
        ([[closed(*NAMES_601, required=["name0"])], STRING], {"name0": ""}),
        ([[ArrayShape((), 1, 0, 1000)], INTEGER], [1] * 1000),
        ([[ArrayShape((1,) * 400, None, 0, 400)], INTEGER], [1] * 400),
        ([[ArrayShape((1,) * 400, None, 400, 400)], INTEGER], [1] * 400),
        ([[StringSet(max_length=100_000)]], "word " * 200),
    ],
)  # fmt: skip
def test_large_schemas(rules, value):
    vocabulary = real_vocabulary()
    matcher = build_matcher(vocabulary, lark(normal(*rules)))
    assert np.median(walk(matcher, vocabulary, spelled(value))) < 0.005


@pytest.mark.parametrize(
    ("rules", "before"),
    [
        ([STRING], '"ab'),
        ([[StringSet(max_length=500)]], '"ab'),
        ([[closed("a", rule=1)], STRING], '{"a": "ab'),
        ([[ObjectShape((Property("abc", 1, True),), (Extra(NOT_ABC, 1),))], STRING],
         '{"abc": "", "'),
        ([[*STRING, *NULL, *NUMBER, strings("abc")]], '"ab'),
    ],
)  # fmt: skip
def test_free_strings_use_the_token_slices(rules, before):
    vocabulary = real_vocabulary()
    free = build_matcher(vocabulary, 'start: %json {"type": "string"}')
    assert cost(build_matcher(vocabulary, lark(normal(*rules))), before) < 10 * cost(free, '"ab')


def cost(matcher, before):
    """Seconds for one mask after some text, at best."""
    matcher.consume_tokens(list(real_vocabulary().pieces(before.encode())))
    seconds = []
    for _ in range(20):
        copy = matcher.deep_copy()
        start = time.perf_counter()
        copy.compute_bitmask()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
