from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from normal_samples import SchemaMaker, ValueMaker, allows, parse, spoil, write

from specrt.grammars.regular import schema_automaton as schema_automaton_module
from specrt.grammars.regular.automaton import Automaton, build, complement_within, trim
from specrt.grammars.regular.converter import NotRegular, predicted_size, to_regex
from specrt.grammars.regular.schema_automaton import schema_automaton
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
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

BOOLEAN = BooleanShape(frozenset([True, False]))


def automaton_of(schema: NormalSchema, item: str = ", ", key: str = ": ") -> Automaton:
    return build(to_regex(schema, item_separator=item, key_separator=key))


def random_schema(rng: random.Random) -> tuple[NormalSchema, Automaton | None]:
    """A schema and its automaton, None where that would be too large."""
    schema = SchemaMaker(rng).schema(levels=2)
    try:
        small = predicted_size(schema) < 4_000
    except NotRegular as error:
        assert "too large" in error.reason
        small = False
    if not small:
        return schema, None
    automaton = schema_automaton(schema, item_separator=", ", key_separator=": ")
    whole = automaton_of(schema)
    assert complement_within(whole, automaton).is_empty()
    assert complement_within(automaton, whole).is_empty()
    useful = trim(automaton.table, automaton.start, automaton.final).num_states
    assert useful <= len(automaton.table) <= useful + len(schema.rules) + 20
    return schema, automaton


def schema_of(*rules: Shape | tuple[Shape, ...]) -> NormalSchema:
    """Rules 0, 1, ...; 0 is the root."""
    shapes = [rule if isinstance(rule, tuple) else (rule,) for rule in rules]
    return NormalSchema({i: Rule(f"/{i}", rule) for i, rule in enumerate(shapes)}, 0)


def texts(schema: NormalSchema) -> set[str]:
    """Everything that is accepted, which must be finite."""
    automaton, found = automaton_of(schema), set()
    waiting = [(b"", automaton.start)]
    while waiting:
        text, state = waiting.pop()
        if automaton.final[state]:
            found.add(text.decode())
        for byte, after in enumerate(automaton.table[state].tolist()):
            if after:
                waiting.append((text + bytes([byte]), after))
    return found


def random_text(automaton: Automaton, rng: random.Random) -> str:
    """A text that the automaton accepts."""
    text, state = bytearray(), automaton.start
    while not automaton.final[state] or (automaton.table[state].any() and rng.random() < 0.7):
        bytes_ = automaton.table[state].nonzero()[0].tolist()
        plain = [byte for byte in bytes_ if byte < 0x80]
        closing = [byte for byte in plain if byte in b'"]}']
        if closing and len(text) > 300 * rng.random():
            byte = rng.choice(closing)
        else:
            byte = rng.choice(plain if plain and rng.random() < 0.9 else bytes_)
        text.append(byte)
        state = int(automaton.table[state, byte])
    return text.decode()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_accepts_exactly_what_the_normal_form_says(seed: int) -> None:
    rng = random.Random(seed)
    schema, automaton = random_schema(rng)
    assume(automaton is not None)
    assert automaton is not None
    maker = ValueMaker(rng, schema)
    for _ in range(15):
        value = maker.value(schema.root)
        for candidate in (value, spoil(rng, value), spoil(rng, spoil(rng, value))):
            expected = allows(schema, schema.root, candidate)
            assert automaton.accepts(write(candidate).encode()) == expected, candidate


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_accepts_no_other_texts(seed: int) -> None:
    rng = random.Random(seed)
    schema, automaton = random_schema(rng)
    assume(automaton is not None)
    assert automaton is not None
    for _ in range(10):
        text = random_text(automaton, rng)
        value = parse(text)
        assert write(value) == text and allows(schema, schema.root, value)
        place = rng.randrange(len(text))
        insert = rng.choice(["", " ", "\n", ",", '"', "\\", "0", "-", "]", "}", "\\u00e9", ".0"])
        broken = text[:place] + insert + text[place + rng.randint(0, 1) :]
        try:
            value = parse(broken)
        except ValueError:
            assert not automaton.accepts(broken.encode())
            continue
        expected = write(value) == broken and allows(schema, schema.root, value)
        assert automaton.accepts(broken.encode()) == expected, broken


def test_separators() -> None:
    schema = schema_of(
        ObjectShape((Property("a", 1, True), Property("b", 1, False))),
        ArrayShape((2, 2), None, 2, 2),
        NullShape(),
    )
    value = parse('{"a": [null, null], "b": [null, null]}')
    for style in ((", ", ": "), (",", ":"), (" ,|", ".*")):
        automaton = automaton_of(schema, *style)
        assert automaton.accepts(write(value, *style).encode())
        assert automaton.accepts(write(value).encode()) == (style == (", ", ": "))


def members(*required: bool, **options: object) -> NormalSchema:
    """An object of nulls named a, b, c ..."""
    properties = tuple(Property(chr(97 + i), 1, flag) for i, flag in enumerate(required))
    return schema_of(ObjectShape(properties, **options), NullShape())  # type: ignore[arg-type]


def subsets(count: int, required: frozenset[int] = frozenset()) -> set[str]:
    return {
        json.dumps({chr(97 + i): None for i in range(count) if bits >> i & 1})
        for bits in range(1 << count)
        if all(bits >> i & 1 for i in required)
    }


@pytest.mark.parametrize("count", range(7))
def test_optional_properties(count: int) -> None:
    assert texts(members(*[False] * count)) == subsets(count)
    if count:
        assert texts(members(*[False] * count, min_properties=1)) == subsets(count) - {"{}"}
    for index in range(count):
        flags = [i == index for i in range(count)]
        assert texts(members(*flags)) == subsets(count, frozenset([index]))


def test_bounds_on_properties() -> None:
    assert texts(members(True, True, max_properties=2, min_properties=2)) == {
        '{"a": null, "b": null}'
    }
    assert texts(members(False, False, max_properties=2)) == subsets(2)
    assert texts(schema_of(ObjectShape(()))) == {"{}"}
    extras = (Extra(StringSet(values=("x", "y")), 1),)
    assert texts(members(True, extras=extras, max_properties=1)) == {'{"a": null}'}
    assert texts(members(extras=extras, max_properties=1)) == {"{}", '{"x": null}', '{"y": null}'}
    for options in (
        {"min_properties": 2},
        {"max_properties": 1},
        {"extras": extras, "max_properties": 5},
    ):
        with pytest.raises(NotRegular, match="number of properties"):
            to_regex(members(False, False, **options), item_separator=",", key_separator=":")


def items(shape: ArrayShape, *rules: Shape) -> set[tuple[object, ...]]:
    return {tuple(json.loads(text)) for text in texts(schema_of(shape, *rules))}


def test_arrays() -> None:
    one, two = NumberSet(values=("1",)), NumberSet(values=("2",))
    assert items(ArrayShape((), None)) == {()}
    assert items(ArrayShape((), 1, 0, 0), one) == {()}
    assert items(ArrayShape((), 1, 2, 3), one) == {(1, 1), (1, 1, 1)}
    assert items(ArrayShape((1,), None, 0, 1), one) == {(), (1,)}
    assert items(ArrayShape((1, 2), None, 1, 2), one, two) == {(1,), (1, 2)}
    assert items(ArrayShape((1, 2), 1, 2, 3), one, two) == {(1, 2), (1, 2, 1)}
    assert items(ArrayShape((1, 2), 1, 3, 4), one, two) == {(1, 2, 1), (1, 2, 1, 1)}
    assert items(ArrayShape((1, 2), 1, 0, 1), one, two) == {(), (1,)}
    assert items(ArrayShape((1,), 2, 0, 3), one, two) == {(), (1,), (1, 2), (1, 2, 2)}


def test_distinct_items() -> None:
    shape = ArrayShape((), 1, 1, 2, distinct=True)
    values = NumberSet(values=("1", "2", "3"))
    assert items(shape, values) == {
        (1,),
        (2,),
        (3,),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 3),
        (3, 1),
        (3, 2),
    }
    all_of_five = items(ArrayShape((), 1, distinct=True), NumberSet(values=tuple("12345")))
    assert len(all_of_five) == 326
    single = ArrayShape((), 1, 0, 1, distinct=True)
    assert automaton_of(schema_of(single, StringSet())).accepts(b'["any"]')
    for refused, rule in (
        (shape, NumberSet(is_integer=True)),
        (replace(shape, max_items=None), NumberSet(values=tuple("123456"))),
        (shape, NumberSet(values=("1", "1.0"))),
        (replace(shape, min_items=3, max_items=None), BOOLEAN),
        (replace(shape, prefix=(1,)), BOOLEAN),
    ):
        with pytest.raises(NotRegular, match="uniqueItems"):
            texts(schema_of(refused, rule))


def test_contains() -> None:
    hit, miss = NumberSet(values=("1",)), NumberSet(values=("2",))
    for minimum in range(3):
        for maximum in (minimum, minimum + 1, None):
            contains = Contains(1, None if maximum is None else 2, minimum, maximum)
            both = (hit, miss)
            automaton = automaton_of(
                schema_of(ArrayShape((), 3, 0, None, contains), hit, miss, both)
            )
            for count in range(6):
                for bits in range(1 << count):
                    value = [1 + (bits >> place & 1) for place in range(count)]
                    hits = value.count(1)
                    expected = minimum <= hits and (maximum is None or hits <= maximum)
                    assert automaton.accepts(json.dumps(value).encode()) == expected
    bounded = ArrayShape((), 3, 0, 5, Contains(1, None, 1, None))
    with pytest.raises(NotRegular, match="contains"):
        automaton_of(schema_of(bounded, hit, miss, (hit, miss)))


def refusal(schema: NormalSchema) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        to_regex(schema, item_separator=", ", key_separator=": ")
    with pytest.raises(type(caught.value)):
        predicted_size(schema)
    return caught.value


def test_refuses_recursion() -> None:
    error = refusal(schema_of(ArrayShape((), 1), (NullShape(), ArrayShape((), 0))))
    assert isinstance(error, NotRegular) and "its own kind" in error.reason
    assert error.pointer in {"/0", "/1"}


def test_refuses_what_is_too_large() -> None:
    # Twice the rule before, forty times: the text would be a terabyte.
    doubling = [ArrayShape((i + 1, i + 1), None, 2, 2) for i in range(40)]
    assert "too large" in refusal(schema_of(*doubling, NullShape())).reason
    nested = [ArrayShape((), i + 1, 0, 30) for i in range(4)]
    assert "too large" in refusal(schema_of(*nested, NullShape())).reason
    assert "too large" in refusal(schema_of(StringSet(min_length=0, max_length=10**8))).reason
    long_name = ObjectShape((Property("x" * 30_000, 1, True),))
    assert "too large" in refusal(schema_of(long_name, NullShape())).reason
    deep = [ArrayShape((i + 1,), None, 1, 1) for i in range(5_000)]
    assert "nested too deeply" in refusal(schema_of(*deep, NullShape())).reason
    many = ArrayShape((1,) * 500, None, 0, 500)
    assert "nested too deeply" in refusal(schema_of(many, NullShape())).reason
    assert "none of them required" in refusal(members(*[False] * 31)).reason


def test_refuses_the_impossible() -> None:
    assert not isinstance(refusal(schema_of(())), NotRegular)
    name = ObjectShape((Property("\ud800", 1, True),))
    assert "surrogate" in refusal(schema_of(name, NullShape())).reason


def test_refusals_name_the_rule() -> None:
    schema = schema_of(
        ObjectShape((Property("a", 1, True),)),
        ArrayShape((), 2, 2, None, distinct=True),
        NumberSet(is_integer=True),
    )
    error = refusal(schema)
    assert (error.pointer, error.keyword) == ("/1", "uniqueItems")


def test_many_properties_stay_small() -> None:
    automaton = automaton_of(members(True, *[False] * 200))
    assert automaton.num_states < 4_000
    assert automaton.accepts(b'{"a": null, "c": null}') and not automaton.accepts(b"{}")
    assert predicted_size(members(*[False] * 30)) < 6 * 30 * 20


def test_predicted_size_follows_the_states() -> None:
    for longest in (10, 100):
        schema = schema_of(StringSet(max_length=longest))
        assert automaton_of(schema).num_states < predicted_size(schema) < 40_000
    assert predicted_size(schema_of(NumberSet(is_integer=True, minimum=Fraction(0)))) < 400


def is_stitched(schema: NormalSchema, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Is the automaton put together without building the whole regex? It is right in any case."""
    whole: list[str] = []

    def spy(regex: str, **options: object) -> Automaton:
        if "alphabet" not in options and "max_states" in options:
            whole.append(regex)
        return build(regex, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(schema_automaton_module, "build", spy)
        stitched = schema_automaton(schema, item_separator=", ", key_separator=": ")
    expected = automaton_of(schema)
    assert complement_within(expected, stitched).is_empty()
    assert complement_within(stitched, expected).is_empty()
    return not whole


def test_what_is_stitched(monkeypatch: pytest.MonkeyPatch) -> None:
    integer, text = NumberSet(is_integer=True), StringSet()
    tool = ObjectShape(
        (
            Property("city", 1, True),
            Property("count", 2, True),
            Property("country", 3, False),
            Property("(a|b){2}", 4, False),
            Property("é\n", 5, False),
        )
    )
    words = StringSet(values=("celsius", "centigrade", "c", "$1|2", "été"))
    numbers = NumberSet(values=("1", "12", "123", "-1"))
    rules = (tool, text, integer, words, numbers, ArrayShape((), 1, 1, 3))
    assert is_stitched(schema_of(*rules), monkeypatch)
    assert is_stitched(schema_of((text, integer, NullShape(), BOOLEAN)), monkeypatch)
    assert is_stitched(members(*[False] * 30), monkeypatch)
    assert is_stitched(schema_of(StringSet(max_length=64)), monkeypatch)
    # Where the next byte does not tell.
    assert not is_stitched(schema_of((text, words)), monkeypatch)
    assert not is_stitched(schema_of((numbers, integer)), monkeypatch)
    assert not is_stitched(
        schema_of((ArrayShape((), 1), ArrayShape((2,), None)), numbers, integer), monkeypatch
    )
    open_object = ObjectShape(
        (Property("a", 1, True), Property("b", 1, False)),
        (Extra(StringSet(excluded_values=frozenset("ab")), 1),),
    )
    assert not is_stitched(schema_of(open_object, text), monkeypatch)
    assert not is_stitched(members(True, *[False] * 150), monkeypatch)


def test_stitched_automata_are_bounded() -> None:
    schema = schema_of(ArrayShape((1,) * 8, None, 8, 8), StringSet(max_length=64))
    with pytest.raises(UnsupportedError, match=r"too large: an automaton of \d+ states"):
        schema_automaton(schema, item_separator=",", key_separator=":", max_states=500)
