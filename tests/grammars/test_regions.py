from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from grammar_walks import ids_of, mask_of, real_vocabulary, tiny_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.grammars.base import DEAD
from specrt.grammars.formats import load_format
from specrt.grammars.llguidance_engine import MatcherPrototype
from specrt.grammars.regions import TurnGrammar
from specrt.grammars.regular.automaton import build
from specrt.grammars.turn_automaton import calls_turn, value_turn

HERMES = load_format("hermes")
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\n])*"'
NUMBER = r"(?:0|[1-9][0-9]{0,2})"
WEATHER = rf'\{{"city": {STRING}(?:, "days": {NUMBER})?(?:, "tags": \[(?:{STRING})?\])?\}}'
EMPTY = r"\{\}"
NAMES = ("weather", "time", "weather2")
REGEXES = (WEATHER, EMPTY, WEATHER)
TEXTS = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Par}is{[", "days": 12}}\n</tool_call>',
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "weather2", "arguments": {"city": "a\\"}}\\\\", "tags": ["é]"]}}'
    "\n</tool_call>",
]


def matcher(vocabulary, regex, *, is_last=False):
    tail = "" if is_last else " TAIL?\nTAIL: /(?s:.+)/"
    lark = f'%llguidance {{"no_forcing": true}}\nstart: VALUE{tail}\nVALUE: /{regex}/\n'
    return MatcherPrototype(vocabulary, lark)


def grammar(vocabulary, engines, *, require_call=False, parallel=True, canonical=True):
    """A turn whose tools are run by the engines named: "o" or "l" each."""
    turn = calls_turn(HERMES, NAMES[: len(engines)], require_call=require_call, parallel=parallel)
    values = [
        build(regex) if engine == "o" else matcher(vocabulary, regex)
        for engine, regex in zip(engines, REGEXES, strict=False)
    ]
    return TurnGrammar(vocabulary, turn, values, canonical=canonical)


def by_bytes(vocabulary):
    return {data: token_id for token_id, data in enumerate(vocabulary.token_bytes) if data}


def random_tokens(data, tokens, rng):
    """One of the tokenisations of `data`."""
    while data:
        lengths = [n for n in range(1, min(len(data), 24) + 1) if data[:n] in tokens]
        length = rng.choice(lengths)
        yield tokens[data[:length]]
        data = data[length:]


@pytest.mark.parametrize("engines", ["ooo", "lll", "olo", "lol"])
@pytest.mark.parametrize("vocabulary", [tiny_vocabulary, real_vocabulary])
def test_every_tokenisation_is_accepted_across_all_borders(engines, vocabulary):
    vocabulary = vocabulary()
    compiled = grammar(vocabulary, engines, canonical=False)
    tokens, rng = by_bytes(vocabulary), random.Random(engines)
    for _ in range(40 if vocabulary.vocab_size < 1000 else 6):
        calls = "\n".join(rng.choices(TEXTS, k=rng.randint(1, 3)))
        text = rng.choice(["", "Hello <b>, é\n", "\n\n"]) + calls
        state = compiled.open()
        node = state.root
        for token_id in random_tokens(text.encode(), tokens, rng):
            assert token_id in ids_of(mask_of(state, node, vocabulary))
            node = state.advance(node, token_id)
            assert node != DEAD, (text, vocabulary.token_bytes[token_id])
            if rng.random() < 0.3:
                state.commit(node)
        assert state.is_final(node)
        assert state.advance(node, vocabulary.eos_token_ids[0]) != DEAD


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("require_call", [True, False])
def test_engines_agree_on_every_mask_of_a_walk(require_call, canonical):
    vocabulary = tiny_vocabulary()
    modes = {"require_call": require_call, "canonical": canonical}
    compiled = [grammar(vocabulary, "".join(e), **modes) for e in product("ol", repeat=3)]
    rng = random.Random(1)
    for _ in range(6):
        states = [one.open() for one in compiled]
        nodes = [state.root for state in states]
        guide = iter(
            random_tokens("\n".join(rng.choices(TEXTS, k=2)).encode(), by_bytes(vocabulary), rng)
        )
        for _ in range(80):
            masks = [
                mask_of(state, node, vocabulary) for state, node in zip(states, nodes, strict=True)
            ]
            assert all((mask == masks[0]).all() for mask in masks[1:])
            assert len({state.forced(n) for state, n in zip(states, nodes, strict=True)}) == 1
            assert len({state.is_final(n) for state, n in zip(states, nodes, strict=True)}) == 1
            allowed = [i for i in ids_of(masks[0]) if i not in vocabulary.eos_token_ids]
            if not allowed:
                break
            # Mostly along a call, or the walk would stay in free text.
            token_id = next(guide, None)
            if token_id not in allowed or rng.random() < 0.02:
                token_id = rng.choice(allowed)
            nodes = [s.advance(n, token_id) for s, n in zip(states, nodes, strict=True)]
            assert DEAD not in nodes
            if rng.random() < 0.5:
                for state, node in zip(states, nodes, strict=True):
                    state.commit(node)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), engines=st.sampled_from(["ooo", "lll", "olo"]))
def test_a_mask_is_what_advance_accepts(seed, engines):
    vocabulary = tiny_vocabulary()
    state = _grammar_of(engines).open()
    rng, node = random.Random(seed), state.root
    text = rng.choice(TEXTS).encode()[: rng.randint(0, 120)]
    for token_id in random_tokens(text, by_bytes(vocabulary), rng):
        if state.advance(node, token_id) == DEAD:
            break
        node = state.advance(node, token_id)
    allowed = set(ids_of(mask_of(state, node, vocabulary)))
    accepted = {i for i in range(vocabulary.vocab_size) if state.advance(node, i) != DEAD}
    assert allowed == accepted


_grammars = {}


def _grammar_of(engines):
    if engines not in _grammars:
        _grammars[engines] = grammar(tiny_vocabulary(), engines, canonical=False)
    return _grammars[engines]


@pytest.mark.parametrize("engine", ["o", "l"])
def test_a_value_alone_may_be_a_number_that_goes_on(engine):
    vocabulary = tiny_vocabulary()
    value = build(NUMBER) if engine == "o" else matcher(vocabulary, NUMBER, is_last=True)
    state = TurnGrammar(vocabulary, value_turn(), [value], canonical=False).open()
    tokens = by_bytes(vocabulary)
    one = state.advance(state.root, tokens[b"1"])
    assert not state.is_final(state.root)
    assert state.is_final(one)
    two = state.advance(one, tokens[b"2"])
    assert two != DEAD
    assert state.advance(one, tokens[b"}"]) == DEAD
    assert state.advance(state.advance(state.root, tokens[b"0"]), tokens[b"2"]) == DEAD
    ended = state.advance(one, vocabulary.eos_token_ids[0])
    assert state.is_final(ended)
    assert ids_of(mask_of(state, ended, vocabulary)) == list(vocabulary.eos_token_ids)
    assert state.advance(ended, tokens[b"1"]) == DEAD


@pytest.mark.parametrize("engines", ["ooo", "lll"])
def test_forced_runs_cross_borders(engines):
    vocabulary = real_vocabulary()
    state = grammar(vocabulary, engines, require_call=True).open()
    node, text = state.root, b""
    while (token_id := state.forced(node)) is not None:
        text += vocabulary.token_bytes[token_id]
        node = state.advance(node, token_id)
    assert b'<tool_call>\n{"name": "'.startswith(text)
    assert len(text) > 20
    single = TurnGrammar(
        vocabulary,
        calls_turn(HERMES, ["time"], require_call=True, parallel=False),
        [build(EMPTY) if engines == "ooo" else matcher(vocabulary, EMPTY)],
    ).open()
    node, text = single.root, b""
    while (token_id := single.forced(node)) is not None:
        text += vocabulary.token_bytes[token_id]
        node = single.advance(node, token_id)
    assert text.decode() == HERMES.call_text("time", "{}")
    assert single.is_final(node)


def test_a_special_token_is_allowed_where_its_marker_stands():
    vocabulary = tiny_vocabulary()
    text, token_id = next(iter(vocabulary.special_texts.items()))
    tool_format = replace(HERMES, call=HERMES.call.replace(HERMES.trigger, text), trigger=text)
    turn = calls_turn(tool_format, ["time"], require_call=False, parallel=False, specials=[text])
    state = TurnGrammar(vocabulary, turn, [build(EMPTY)]).open()
    assert token_id in ids_of(mask_of(state, state.root, vocabulary))
    node = state.advance(state.root, token_id)
    output = b""
    while (forced := state.forced(node)) is not None:
        output += vocabulary.token_bytes[forced]
        node = state.advance(node, forced)
    assert text + output.decode() == tool_format.call_text("time", "{}")
    others = set(vocabulary.special_texts.values()) - {token_id}
    assert not others & set(ids_of(mask_of(state, state.root, vocabulary)))
    required = calls_turn(tool_format, ["time"], require_call=True, parallel=False, specials=[text])
    state = TurnGrammar(vocabulary, required, [build(EMPTY)]).open()
    assert state.forced(state.root) == token_id


def test_nodes_do_not_pile_up():
    vocabulary = tiny_vocabulary()
    state = grammar(vocabulary, "lll", require_call=True, canonical=False).open()
    tokens = by_bytes(vocabulary)
    rng = random.Random(0)
    for token_id in random_tokens("\n".join(TEXTS * 3).encode(), tokens, rng):
        for other in rng.sample(sorted(tokens.values()), 5):
            state.advance(state.root, other)
        mask = np.zeros((1, vocabulary.num_words), dtype=np.int32)
        state.masks([state.root], mask)
        state.commit(state.advance(state.root, token_id))
        assert state.num_nodes < 60
