from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from grammar_walks import (
    feed,
    ids_of,
    mask_of,
    random_output,
    real_vocabulary,
    takes,
    tiny_vocabulary,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.errors import GrammarError
from specrt.grammars.base import DEAD, GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.llguidance_engine import MatcherPrototype, RefusedError
from specrt.grammars.regions import TurnGrammar
from specrt.grammars.turn_automaton import value_turn

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "centigrade", "été", "èbc"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = (
    ToolSpec(name="get_weather", parameters=json.dumps(WEATHER), strict=True),
    ToolSpec(name="get_time", parameters="{}", strict=True),
)
ARGUMENTS = '{"city": "Par\\nis é", "unit": "été"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
AUTO = GrammarRecipe(kind="tools", tools=TOOLS)
REQUIRED = GrammarRecipe(kind="tools", tools=TOOLS, require_call=True)
FREE = GrammarRecipe(kind="tools", tools=TOOLS, canonical=False)
RECIPES = [AUTO, REQUIRED, FREE, GrammarRecipe(kind="json", schema=json.dumps(WEATHER))]

BACKENDS = ["outlines", "llguidance"]


@pytest.fixture(scope="module", params=BACKENDS)
def tiny(request):
    compiler = GrammarCompiler(tiny_vocabulary(), backend=request.param)

    def opened(recipe):
        grammar = compiler.compile(recipe)
        assert grammar.engine == request.param
        return grammar.open()

    return opened


@pytest.fixture(scope="module", params=BACKENDS)
def real_compiler(request):
    return GrammarCompiler(real_vocabulary(), backend=request.param)


@pytest.mark.parametrize("recipe", RECIPES)
def test_eos_bits_are_set_iff_the_node_is_final(tiny, recipe):
    vocabulary, state = tiny_vocabulary(), tiny(recipe)
    text = json.dumps({"city": "x", "unit": "été"}, ensure_ascii=False)
    text = text if recipe.kind == "json" else CALL
    node = state.root
    finals = 0
    for token_id in (*vocabulary.encode(text.encode()), None):
        ids = ids_of(mask_of(state, node, vocabulary))
        eos = [i for i in vocabulary.eos_token_ids if i in ids]
        assert eos == (list(vocabulary.eos_token_ids) if state.is_final(node) else [])
        finals += state.is_final(node)
        if token_id is not None:
            node = state.advance(node, token_id)
    assert state.is_final(node)
    assert finals >= 1


def test_nothing_follows_the_end(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(AUTO)
    first, second = vocabulary.eos_token_ids
    end = state.advance(state.root, first)
    assert end not in (DEAD, state.root)
    assert state.is_final(end)
    assert state.forced(end) is None
    assert ids_of(mask_of(state, end, vocabulary)) == [first, second]
    assert state.advance(end, second) == end
    assert state.advance(end, vocabulary.encode(b"a")[0]) == DEAD
    state.commit(end)
    assert state.root == end
    assert state.allowed(end, 2) == [first, second]
    assert state.num_nodes == 0


def test_eos_in_the_middle_of_a_value_is_dead(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(REQUIRED)
    node = feed(state, vocabulary.encode(CALL.encode())[:9])
    assert node != DEAD
    assert [state.advance(node, i) for i in vocabulary.eos_token_ids] == [DEAD, DEAD]


def test_odd_tokens_are_dead_and_harm_nothing(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(REQUIRED)
    before = mask_of(state, state.root, vocabulary)
    for token_id in (-1, 1, 325, vocabulary.vocab_size, 10**9):  # bos, padding, beyond the logits
        assert state.advance(state.root, token_id) == DEAD
    assert state.advance(DEAD, 5) == DEAD
    assert state.advance(10**6, 5) == DEAD
    fresh = tiny(REQUIRED)
    assert (mask_of(fresh, fresh.root, vocabulary) == before).all()
    assert takes(state, vocabulary, CALL)


def test_special_and_padding_ids_are_never_allowed(tiny):
    vocabulary = tiny_vocabulary()
    state = tiny(FREE)
    for text in ("", "some text", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a'):
        ids = set(ids_of(mask_of(state, feed(state, vocabulary.encode(text.encode())), vocabulary)))
        assert not ids & (vocabulary.special_ids - set(vocabulary.eos_token_ids))
    assert takes(state, vocabulary, "as text: <|im_end|>")


def test_allowed_lists_the_mask_up_to_the_limit(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(AUTO)
    for node in (state.root, feed(state, vocabulary.encode(b"text <tool_call"))):
        ids = ids_of(mask_of(state, node, vocabulary))
        assert state.allowed(node, len(ids)) == ids
        assert state.allowed(node, len(ids) - 1) is None
    state = tiny(REQUIRED)
    assert state.allowed(state.root, 1) == [vocabulary.encode(b"<tool_call>")[0]]
    assert state.allowed(state.root, 0) is None


def test_forced_nodes_have_one_bit_and_one_way_on(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(REQUIRED)
    node, num_forced = state.root, 0
    for token_id in vocabulary.encode(CALL.encode()):
        forced = state.forced(node)
        ids = ids_of(mask_of(state, node, vocabulary))
        if forced is not None:
            num_forced += 1
            assert ids == [forced] == [token_id]
            other = next(i for i in vocabulary.encode(b'<{"}a') if i != forced)
            assert state.advance(node, other) == DEAD
        node = state.advance(node, token_id)
    assert num_forced > 25


def test_without_canonical_any_tokenisation_is_taken_across_regions(tiny):
    vocabulary = tiny_vocabulary()
    single = {text: i for i, text in enumerate(vocabulary.token_bytes) if len(text) == 1}
    letters = tuple(single[bytes([byte])] for byte in f"hi\n{CALL}\n{CALL}".encode())
    state = tiny(FREE)
    node = feed(state, letters)
    assert node != DEAD
    assert state.is_final(node)
    assert state.forced(state.root) is None
    assert feed(tiny(AUTO), letters) == DEAD  # narrowed: the call's own text has one spelling


def test_a_token_may_end_one_region_and_begin_the_next(tiny):
    vocabulary = tiny_vocabulary()
    tokens = vocabulary.encode(CALL.encode())
    crossing = vocabulary.token_bytes.index(b' {"')  # the call's head, then its arguments
    assert crossing in tokens
    for recipe in (AUTO, FREE):
        assert takes(tiny(recipe), vocabulary, CALL)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(RECIPES))
def test_random_walks_end_in_valid_output(tiny, seed, recipe):
    vocabulary, state = tiny_vocabulary(), tiny(recipe)
    output, end = random_output(state, vocabulary, random.Random(seed), 250)
    assert end != DEAD or len(output) > 100
    text = output.decode(errors="strict" if end else "ignore")
    if recipe.kind == "json" and end:
        jsonschema.validate(json.loads(text), WEATHER)
        assert json.dumps(json.loads(text), ensure_ascii=False) == text
    if recipe.kind == "tools" and end:
        content, *calls = text.split("<tool_call>\n")
        if calls:
            assert content == "" or (content.endswith("\n") and len(content) > 1)
        assert calls or not recipe.require_call
        for index, call in enumerate(calls):
            body, rest = call.split("\n</tool_call>")
            assert rest == ("\n" if index + 1 < len(calls) else "")
            value = json.loads(body)
            assert list(value) == ["name", "arguments"]
            schema = {"get_weather": WEATHER, "get_time": {"maxProperties": 0}}[value["name"]]
            jsonschema.validate(value["arguments"], schema)
            assert json.dumps(value, ensure_ascii=False) == body


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_node_depends_on_its_path_alone(tiny, data):
    """Grow a tree in random order, fork, ask and commit; then compare with fresh states."""
    vocabulary = tiny_vocabulary()
    recipe = data.draw(st.sampled_from(RECIPES))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    state = tiny(recipe)
    paths = {(): state.root}
    for _ in range(60):
        path = rng.choice(list(paths))
        node = paths[path]
        action = rng.random()
        if action < 0.1:
            state.commit(node)
            paths = committed(state, paths, path)
            continue
        if action < 0.2:
            state.forced(node)
            continue
        ids = state.allowed(node, 10**6)
        assert ids is not None
        token_id = rng.choice(ids[-40:] if rng.random() < 0.5 else ids)
        if rng.random() < 0.1:
            token_id = rng.randrange(vocabulary.vocab_size)
        child = state.advance(node, token_id)
        assert (child != DEAD) == (token_id in ids)
        if child != DEAD:
            assert paths.setdefault((*path, token_id), child) == child
    for path, node in rng.sample(sorted(paths.items()), min(6, len(paths))):
        fresh = tiny(recipe)
        other = feed(fresh, path)
        assert (mask_of(state, node, vocabulary) == mask_of(fresh, other, vocabulary)).all()
        assert state.forced(node) == fresh.forced(other)
        assert state.is_final(node) == fresh.is_final(other)


def committed(state, paths, root):
    """The paths below `root`, with nodes found again: those from before a commit may be gone."""
    found = {root: state.root}
    for path in sorted(path for path in paths if path[: len(root)] == root and path != root):
        if path[:-1] in found:
            found[path] = state.advance(found[path[:-1]], path[-1])
    return found


def test_arena_stays_small_over_a_long_output(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(AUTO)
    tokens = vocabulary.encode(b"<tool and some words, " * 60)[:500]
    assert len(tokens) == 500
    out = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    for token_id in tokens:
        for draft in (token_id, *vocabulary.encode(b"abc")):
            branch = state.advance(state.root, draft)
            state.masks([branch], out)
            state.advance(branch, token_id)
        state.commit(state.advance(state.root, token_id))
        assert state.num_nodes <= 10
    assert takes(tiny(AUTO), vocabulary, "<tool and some words, " * 3)


def test_commit_goes_on_with_the_same_masks(tiny):
    vocabulary, state = tiny_vocabulary(), tiny(REQUIRED)
    letters = vocabulary.encode(CALL.encode())
    node = feed(state, letters[:-12])
    deep = feed(state, letters[:-10])
    mask = mask_of(state, deep, vocabulary)
    state.commit(node)
    assert state.root == node
    again = state.advance(state.advance(node, letters[-12]), letters[-11])
    assert (mask_of(state, again, vocabulary) == mask).all()
    state.commit(again)
    state.commit(again)
    assert (mask_of(state, state.root, vocabulary) == mask).all()


def test_a_failed_grammar_says_so_and_never_lets_go():
    """A constant of control characters alone passes llguidance's compiler and has a dead mask."""
    options = {"whitespace_flexible": False, "json_allowed_escapes": '"\\bfnrt'}
    schema = {"type": "object", "properties": {"a": {"const": "\x01"}}, "required": ["a"]}
    lark = '%llguidance {"no_forcing": true}\nstart: %json '
    lark += json.dumps({**schema, "x-guidance": options})
    vocabulary = tiny_vocabulary()
    value = MatcherPrototype(vocabulary, lark)
    state = TurnGrammar(vocabulary, value_turn(), [value], canonical=False).open()
    node = feed(state, vocabulary.encode(b'{"a":'))
    out = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    with pytest.raises(GrammarError, match="cannot go on"):
        state.masks([node], out)
    with pytest.raises(GrammarError):
        state.masks([node], out)
    assert state.advance(node, vocabulary.encode(b'"')[0]) == DEAD
    with pytest.raises(RefusedError):
        MatcherPrototype(vocabulary, "start: nowhere")


def test_real_vocabulary_walk_and_run_cost(real_compiler):
    vocabulary = real_vocabulary()
    text = f"Sure.\n{CALL}"
    state = real_compiler.compile(AUTO).open()
    assert takes(state, vocabulary, text)
    required = real_compiler.compile(REQUIRED)
    costs = []
    for _ in range(5):
        state = required.open()
        node, num_forced = state.root, 0
        start = time.thread_time()
        while (token_id := state.forced(node)) is not None:
            node = state.advance(node, token_id)
            num_forced += 1
        costs.append((time.thread_time() - start) / num_forced)
    assert num_forced >= 5  # <tool_call>\n{"name": "get_ ...
    assert min(costs) < 300e-6, "about 30 us a token on an idle machine"


def test_real_vocabulary_is_narrowed_to_its_own_tokenisation(real_compiler):
    vocabulary = real_vocabulary()
    tokens = vocabulary.encode(CALL.encode())
    state = real_compiler.compile(REQUIRED).open()
    node, forced = state.root, 0
    for token_id in tokens:
        forced += state.forced(node) is not None
        assert state.forced(node) in (None, token_id)
        node = state.advance(node, token_id)
        assert node != DEAD
    assert forced / len(tokens) > 0.5


def test_a_mask_does_not_depend_on_the_paths_tried_before(real_compiler):
    """The paths that made a rolled-back matcher allow `"}` where a second argument is required."""
    names = ("a", "b")
    one = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    two = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": [*names],
    }
    tools = tuple(
        ToolSpec(name=name, parameters=json.dumps(schema))
        for name, schema in (("du", one), ("diff", two))
    )
    recipe = GrammarRecipe(kind="tools", tools=tools, require_call=True)
    vocabulary = real_vocabulary()
    for canonical in (True, False):
        recipe = replace(recipe, canonical=canonical)
        begin = '<tool_call>\n{"name": "d'
        paths = [
            begin + 'u", "arguments": {"type": "',
            begin + 'iff", "arguments": {"a": "',
            begin + 'u", "arguments": {"type": "x"}',
            begin + 'iff", "arguments": {"a": "x", "b": "',
        ]
        for order in itertools.permutations(paths):
            state = real_compiler.compile(recipe).open()
            for text in order * 2:
                node = feed(state, vocabulary.encode(text.encode()))
                fresh = real_compiler.compile(recipe).open()
                expected = mask_of(fresh, feed(fresh, vocabulary.encode(text.encode())), vocabulary)
                assert np.array_equal(mask_of(state, node, vocabulary), expected), (order, text)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), recipe=st.sampled_from(RECIPES))
def test_a_tree_explored_in_any_order_has_the_masks_of_its_paths(tiny, data, recipe):
    vocabulary, state = tiny_vocabulary(), tiny(recipe)
    paths = {(): state.root}
    for _ in range(data.draw(st.integers(1, 30))):
        path = data.draw(st.sampled_from(sorted(paths)))
        node = paths[path]
        ids = ids_of(mask_of(state, node, vocabulary))
        if not ids:
            continue
        token_id = data.draw(st.sampled_from(ids))
        paths[(*path, token_id)] = state.advance(node, token_id)
        fresh = tiny(recipe)
        expected = mask_of(fresh, feed(fresh, path), vocabulary)
        assert np.array_equal(mask_of(state, node, vocabulary), expected)
        if data.draw(st.integers(0, 9)) == 0:
            state.commit(node)
            paths = committed(state, paths, path)
