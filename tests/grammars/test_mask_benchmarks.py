"""Micro benchmarks of the regular engine (`make bench`); `make test` skips them."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from grammar_walks import real_vocabulary
from pytest_benchmark.fixture import BenchmarkFixture

from specrt.grammars.regular import schema_automaton as schema_automaton_module
from specrt.grammars.regular.automaton import build
from specrt.grammars.regular.converter import to_regex
from specrt.grammars.regular.schema_automaton import schema_automaton
from specrt.grammars.regular.token_trie import build_trie, trie_of
from specrt.grammars.regular.token_walk import MaskFiller, TokenWalk, plain_mask
from specrt.grammars.schema.normal import ArrayShape, NormalSchema, ObjectShape, Property, Rule
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet

SCHEMA = NormalSchema(
    {
        0: Rule(
            "",
            (
                ObjectShape(
                    (
                        Property("city", 1, True),
                        Property("unit", 2, True),
                        Property("days", 3, False),
                        Property("tags", 4, False),
                    )
                ),
            ),
        ),
        1: Rule("", (StringSet(),)),
        2: Rule("", (StringSet(values=("celsius", "fahrenheit")),)),
        3: Rule("", (NumberSet(is_integer=True),)),
        4: Rule("", (ArrayShape((), 1, 0, 5),)),
    },
    0,
)
STYLE = {"item_separator": ", ", "key_separator": ": "}


@pytest.fixture(scope="module")
def walk() -> TokenWalk:
    return TokenWalk(schema_automaton(SCHEMA, **STYLE).table, real_vocabulary())


def state_after(text: str) -> int:
    automaton = schema_automaton(SCHEMA, **STYLE)
    state = automaton.start
    for byte in text.encode():
        state = int(automaton.table[state, byte])
    assert state
    return state


def test_bench_tool_with_known_parts(benchmark: BenchmarkFixture) -> None:
    benchmark(schema_automaton, SCHEMA, **STYLE)


def test_bench_tool_with_new_parts(benchmark: BenchmarkFixture) -> None:
    def first() -> None:
        schema_automaton_module._kept_part.cache_clear()
        schema_automaton(SCHEMA, **STYLE)

    benchmark(first)


def test_bench_tool_as_one_regex(benchmark: BenchmarkFixture) -> None:
    benchmark(lambda: build(to_regex(SCHEMA, **STYLE)))


def test_bench_trie(benchmark: BenchmarkFixture) -> None:
    benchmark(build_trie, real_vocabulary().token_bytes)


def test_bench_filler(benchmark: BenchmarkFixture) -> None:
    benchmark(MaskFiller, trie_of(real_vocabulary()))


@pytest.mark.parametrize(
    "text", ['{"ci', '{"city": "', '{"city": "", "unit": "', '{"city": "", "unit": "celsius", "']
)
def test_bench_mask(benchmark: BenchmarkFixture, walk: TokenWalk, text: str) -> None:
    benchmark(walk.mask, state_after(text))


def test_bench_masks_of_a_bounded_string(benchmark: BenchmarkFixture) -> None:
    automaton = build(r'"[^"\\\x00-\x1f]{0,64}"')
    bounded = TokenWalk(automaton.table, real_vocabulary())
    states = cycle(np.flatnonzero((automaton.table != 0).sum(axis=1) > 64).tolist())
    benchmark(lambda: bounded.mask(next(states)))


def test_bench_mask_in_numpy(benchmark: BenchmarkFixture) -> None:
    table = schema_automaton(SCHEMA, **STYLE).table
    benchmark(plain_mask, table, state_after('{"city": "'), trie_of(real_vocabulary()))


def test_bench_walk(benchmark: BenchmarkFixture, walk: TokenWalk) -> None:
    state = state_after('{"city": "')
    benchmark(walk.walk, state, b" Paris")
