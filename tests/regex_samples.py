"""Random regexes, and automata by hand, that the tests of the regular engine share."""

from __future__ import annotations

import itertools
import random

import numpy as np
from hypothesis import strategies as st

from specrt.grammars.regular.automaton import Automaton

ALPHABET = ("a", "b", '"', "é", "日")


def regexes() -> st.SearchStrategy[str]:
    """Regexes over ALPHABET that mean the same to Python's re and to Rust's regex crate."""
    leaves = st.sampled_from([*ALPHABET, "[ab]", '[^a"]', "[a-é]", "\\."])

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
        return st.one_of(
            st.builds(lambda parts: "".join(parts), st.lists(inner, min_size=1, max_size=3)),
            st.builds(
                lambda parts: f"(?:{'|'.join(parts)})", st.lists(inner, min_size=2, max_size=3)
            ),
            st.builds(lambda part, times: f"(?:{part}){times}", inner, repeats),
        )

    return st.recursive(leaves, extend, max_leaves=8)


def short_texts(length: int) -> list[str]:
    """Every text over ALPHABET of at most `length` characters."""
    return [
        "".join(text)
        for count in range(length + 1)
        for text in itertools.product(ALPHABET, repeat=count)
    ]


def random_table(rng: random.Random, num_states: int, num_symbols: int = 256) -> np.ndarray:
    """A table with self-loops over byte ranges, chains and dead ends: int32 [S, num_symbols]."""
    table = np.zeros((num_states, num_symbols), np.int32)
    for state in range(1, num_states):
        for _ in range(rng.randint(0, 4)):
            low = rng.randrange(256)
            high = rng.randint(low, min(256, low + rng.choice([1, 30, 256])))
            table[state, low:high] = rng.choice([state, state, rng.randrange(num_states)])
        for byte in rng.sample(range(32, 127), 3):
            table[state, byte] = rng.randrange(num_states)
    return table


def texts_of(automaton: Automaton, alphabet: bytes, length: int) -> set[bytes]:
    """What an automaton accepts, at most `length` bytes long."""
    found = set()
    frontier = [(b"", automaton.start)]
    for _ in range(length + 1):
        found |= {text for text, state in frontier if automaton.final[state]}
        frontier = [
            (text + bytes([byte]), int(automaton.table[state, byte]))
            for text, state in frontier
            for byte in alphabet
            if automaton.table[state, byte]
        ]
    return found
