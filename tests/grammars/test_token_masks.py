from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from grammar_walks import ids_of, real_vocabulary, tiny_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from regex_samples import random_table, regexes

from specrt.grammars.base import DEAD
from specrt.grammars.regular.automaton import build
from specrt.grammars.regular.token_trie import TokenTrie, build_trie, trie_of
from specrt.grammars.regular.token_walk import MaskFiller, TokenWalk, filler_of, plain_mask
from specrt.grammars.vocabulary import Vocabulary

STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])*"'
TOOL = (
    rf'\{{"city": {STRING}, "unit": (?:"celsius"|"été")(?:, "days": -?(?:0|[1-9][0-9]{{0,18}}))?'
    r'(?:, "tags": \["[a-z ]{1,5}"(?:, "[a-z ]{1,5}")*\])?\}'
)
# Each has states that all characters of a class lead on from in another way.
CLASSES = {
    "string": STRING,
    "string of at most 40": STRING[:-2] + '{0,40}"',
    "string of 3 to 5": STRING[:-2] + '{3,5}"',
    "ascii only": r'"[ !#-\[\]-~]*"',
    "without Latin-1": r'"(?:[^"\\\x00-\x1f\x{80}-\x{ff}])*"',
    "without one character": r'"(?:[^"\\\x00-\x1f\x{65e5}])*"',
    "class that shrinks": r"[ -~]{2}[a-z]{2}",
    "class that grows": r"[A-Za-z]{1,3}[ -~]*",
    "class that shifts": r"(?:[ -~][!-~])*",
    "two classes": r"(?:[ -N][O-~])*",
    "ascii after the first": r'[^"\x00-\x1f][ !#-\x7f]*',
    "ascii in the middle": r'[^"\x00-\x1f]{2}[ !#-\x7f]{3}[^"\x00-\x1f]*',
    "capitals": r"[0-Z]{1,30}",
    "words": r"(?:\w+ )*\w",
    "text until a mark": r"(?s:[^<]|<[^t])*",
    "every third": r"(?s:...)*",
    "tool": TOOL,
}


def brute_force(table: np.ndarray, state: int, token_bytes: list[bytes]) -> list[int]:
    found = []
    for token_id, text in enumerate(token_bytes):
        after = state
        for byte in text:
            after = int(table[after, byte])
        if text and after != DEAD:
            found.append(token_id)
    return found


def ids(mask: np.ndarray) -> list[int]:
    return ids_of(mask.view(np.int32))


def token_texts(seed: int) -> list[bytes]:
    """A vocabulary with what a trie could trip over: gaps, equal tokens, prefixes, odd bytes."""
    rng = random.Random(seed)
    pieces = ["a", "B", "0", " ", '"', "\\", "<t", "é", "日本", "\n", "~", "\U0001f600", "}"]
    texts = [bytes([byte]) for byte in range(256)]
    texts += ["".join(rng.choices(pieces, k=rng.randint(1, 9))).encode() for _ in range(300)]
    texts += [text[: rng.randint(1, len(text))] for text in texts[256:]]  # cut inside characters
    texts += [text[rng.randint(0, len(text) - 1) :] for text in texts[256:400]]
    texts += [b"a" * 31, b"a" * 32, b"a" * 33, b" " * 70, b"\xe6\x97" + b"a" * 40]
    texts += rng.choices(texts, k=20) + [b""] * 7
    rng.shuffle(texts)
    return texts


def check_trie(trie: TokenTrie, token_bytes: list[bytes]) -> None:
    num_nodes = len(trie.node_byte)
    expected = {text[:end] for text in token_bytes for end in range(1, len(text) + 1)}
    assert num_nodes == len(expected)
    paths: list[bytes] = []
    found: dict[bytes, int] = {}
    for node in range(num_nodes):
        parent = int(trie.parent[node])
        path = (paths[parent] if parent >= 0 else b"") + bytes([trie.node_byte[node]])
        paths.append(path)
        assert trie.node_depth[node] == len(path) - 1
        if trie.node_bit[node]:
            bit = int(trie.node_bit[node]).bit_length() - 1
            found[path] = int(trie.node_word[node]) * 32 + bit
    assert paths == sorted(expected)
    for node, path in enumerate(paths):
        inside = [p for p in paths[node : trie.subtree_end[node]] if p.startswith(path)]
        assert len(inside) == trie.subtree_end[node] - node
        assert not any(p.startswith(path) for p in paths[trie.subtree_end[node] :][:1])
    assert all(token_bytes[token_id] == path for path, token_id in found.items())
    assert set(found) == {text for text in token_bytes if text}
    twins = {b: a for a, b in trie.twins.tolist()}
    for token_id, text in enumerate(token_bytes):
        if text and found[text] != token_id:
            assert twins[token_id] == found[text]
    assert len(twins) + len(found) == sum(map(bool, token_bytes))
    assert trie.max_depth == max(map(len, token_bytes), default=0)
    assert trie.num_words == (len(token_bytes) + 31) // 32
    assert sorted(np.concatenate([*trie.levels, []]).tolist()) == list(range(num_nodes))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=4), max_size=40))
def test_trie_of_any_tokens(token_bytes: list[bytes]) -> None:
    check_trie(build_trie(token_bytes), token_bytes)


def test_trie_of_the_sample_vocabulary() -> None:
    check_trie(build_trie(token_texts(0)), token_texts(0))
    vocabulary = tiny_vocabulary()
    check_trie(trie_of(vocabulary), vocabulary.token_bytes)
    assert trie_of(vocabulary) is trie_of(vocabulary)


@pytest.mark.parametrize("name", CLASSES)
def test_masks_of_classes(name: str) -> None:
    automaton = build(CLASSES[name])
    token_bytes = token_texts(1)
    trie = build_trie(token_bytes)
    filler = MaskFiller(trie)
    for state in range(automaton.num_states):
        expected = brute_force(automaton.table, state, token_bytes)
        assert ids(filler.mask(automaton.table, state)) == expected
        assert ids(plain_mask(automaton.table, state, trie)) == expected


@pytest.mark.parametrize("seed", range(12))
def test_masks_of_random_tables(seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng, rng.randint(2, 20), num_symbols=256 + rng.randint(0, 3))
    token_bytes = token_texts(seed)
    trie = build_trie(token_bytes)
    filler = MaskFiller(trie)
    for state in range(len(table)):
        expected = brute_force(table, state, token_bytes)
        assert ids(filler.mask(table, state)) == expected
        assert ids(plain_mask(table, state, trie)) == expected


@settings(max_examples=60, deadline=None)
@given(regexes())
def test_masks_of_random_regexes(regex: str) -> None:
    vocabulary = tiny_vocabulary()
    table = build(regex).table
    walk = TokenWalk(table, vocabulary)
    for state in range(min(len(table), 20)):
        assert ids(walk.mask(state)) == brute_force(table, state, vocabulary.token_bytes)


def test_real_vocabulary() -> None:
    vocabulary = real_vocabulary()
    rng = random.Random(0)
    for regex in (TOOL, CLASSES["string of at most 40"]):
        table = build(regex).table
        walk = TokenWalk(table, vocabulary)
        states = range(1, len(table))
        for state in states:
            mask = walk.mask(state)
            assert (mask == plain_mask(table, state, trie_of(vocabulary)).view(np.int32)).all()
        for state in rng.sample(states, 2):
            assert ids(walk.mask(state)) == brute_force(table, state, vocabulary.token_bytes)


def test_walk_and_mask_agree() -> None:
    vocabulary = tiny_vocabulary()
    table = build(TOOL).table
    walk = TokenWalk(table, vocabulary)
    rng = random.Random(0)
    state = 1
    for _ in range(300):
        allowed = set(ids(walk.mask(state)))
        moves = {i: walk.walk(state, text) for i, text in enumerate(vocabulary.token_bytes) if text}
        assert {token_id for token_id, after in moves.items() if after} == allowed
        state = moves[rng.choice(sorted(allowed))] if allowed else 1
    assert walk.walk(1, b"") == 1 and walk.walk(DEAD, b"a") == DEAD


def test_masks_are_the_callers_own() -> None:
    walk = TokenWalk(build(STRING).table, tiny_vocabulary())
    for state in (1, 2):
        before = walk.mask(state)
        before[:] = -1
        assert (walk.mask(state) != before).any()


def test_special_tokens_have_no_place_in_a_mask() -> None:
    vocabulary = tiny_vocabulary()
    mask = TokenWalk(build("(?s:.)*").table, vocabulary).mask(1)
    assert vocabulary.special_ids.isdisjoint(ids(mask))


def test_an_empty_vocabulary() -> None:
    trie = build_trie([b"", b""])
    table = build(STRING).table
    assert not MaskFiller(trie).mask(table, 1).any() and not plain_mask(table, 1, trie).any()


def test_more_classes_than_are_kept() -> None:
    token_bytes = token_texts(2)
    filler = MaskFiller(build_trie(token_bytes))
    for left_out in range(0x23, 0x23 + 50):
        table = build(rf'[^"\x00-\x1f\x{left_out:02x}]*').table
        assert ids(filler.mask(table, 1)) == brute_force(table, 1, token_bytes)


def test_threads() -> None:
    vocabulary = real_vocabulary()
    table = build(TOOL).table
    expected = [TokenWalk(table, vocabulary).mask(state) for state in range(len(table))]

    def run(seed: int) -> bool:
        walk = TokenWalk(table, vocabulary)
        states = random.Random(seed).sample(range(len(table)), len(table))
        return all((walk.mask(state) == expected[state]).all() for state in states)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    from specrt.grammars.regular import token_walk

    monkeypatch.setattr(token_walk, "_load_kernel", lambda: None)
    token_bytes = token_texts(3)
    filler = MaskFiller(build_trie(token_bytes))
    table = build(TOOL).table
    for state in range(0, len(table), 7):
        assert ids(filler.mask(table, state)) == brute_force(table, state, token_bytes)


def test_numba_is_loaded_by_the_first_filler_only() -> None:
    code = (
        "import sys\n"
        "from specrt.grammars.regular import token_walk, token_trie\n"
        "assert 'numba' not in sys.modules\n"
        "token_walk.MaskFiller(token_trie.build_trie([b'a']))\n"
        "assert 'numba' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_a_vocabulary_does_not_outlive_its_users() -> None:
    import gc
    import weakref

    vocabulary = tiny_vocabulary.__wrapped__()
    assert isinstance(vocabulary, Vocabulary)
    assert filler_of(vocabulary) is filler_of(vocabulary)
    gone = weakref.ref(filler_of(vocabulary)), weakref.ref(vocabulary)
    del vocabulary
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
