from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from grammar_walks import tiny_vocabulary
from torch import Tensor

from specrt.grammars.base import DEAD
from specrt.grammars.regular.automaton import build
from specrt.grammars.regular.device_tables import DeviceTables, device_tables
from specrt.grammars.regular.token_walk import TokenWalk
from specrt.kernels import grammar
from specrt.kernels.grammar import grammar_advance, plain_advance

NUM_TOKENS = 60


def by_hand(state: int, token: int, tables: tuple[Tensor, Tensor, Tensor]) -> int:
    """One pair, a byte after the other."""
    transitions, token_bytes, token_lengths = tables
    if not 0 <= token < len(token_lengths):
        return DEAD
    length = int(token_lengths[token])
    if length <= 0:
        return int(transitions[state, 255 - length]) if length else DEAD
    for byte in token_bytes[token, :length].tolist():
        state = int(transitions[state, byte])
    return state


def random_tables(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A table with two special symbols and a vocabulary with tokens of 0 to 9 bytes."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    table = numbers.integers(0, 30, (30, 258), np.int32)
    table[numbers.random(table.shape) < 0.2] = DEAD
    table[DEAD] = DEAD
    lengths = np.array([rng.randint(0, 9) for _ in range(NUM_TOKENS)], np.int32)
    lengths[:2] = -1, -2
    texts = numbers.integers(0, 256, (NUM_TOKENS, 9), np.uint8)
    return tuple(map(torch.from_numpy, (table, texts, lengths)))  # type: ignore[return-value]


def pairs(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randint(0, 30, (count,), generator=generator, dtype=torch.int32)
    tokens = torch.randint(-3, NUM_TOKENS + 3, (count,), generator=generator, dtype=torch.int32)
    return states, tokens


def check(advance: object, device: str = "cpu") -> None:
    """An implementation of grammar_advance against `by_hand`."""
    for seed, count in enumerate([0, 1, 7, 64, 65, 500]):
        tables = random_tables(seed)
        states, tokens = pairs(seed, count)
        inputs = [t.to(device) for t in (states, tokens, *tables)]
        after = advance(*inputs)  # type: ignore[operator]
        assert after.dtype == torch.int32 and after.shape == (count,)
        expected = [
            by_hand(s, t, tables) for s, t in zip(states.tolist(), tokens.tolist(), strict=True)
        ]
        assert after.tolist() == expected
        assert count < 500 or (len(set(expected)) > 9 and DEAD in expected)


def test_plain_twin() -> None:
    check(plain_advance)


def test_on_the_cpu_the_op_is_the_twin() -> None:
    check(grammar_advance)


def test_kernel_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = dict(os.environ, TRITON_INTERPRET="1")
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    code = "from kernels.test_grammar_advance import check_kernel; check_kernel()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environment)


def check_kernel() -> None:
    check(grammar.triton_advance)


@pytest.mark.gpu
def test_kernel_on_the_device() -> None:
    if not torch.cuda.is_available() or grammar.triton is None:
        pytest.skip("needs a CUDA device and triton")
    check(grammar_advance, "cuda")


@pytest.fixture(scope="module")
def tables() -> DeviceTables:
    vocabulary = tiny_vocabulary()
    automaton = build(r'\{"a": "(?:[^"\\\x00-\x1f]){0,9}", "n": -?[0-9]{1,4}\}')
    table = np.zeros((automaton.num_states, 257), np.int32)
    table[:, :256] = automaton.table
    table[automaton.start, 256] = automaton.num_states - 1
    walk = TokenWalk(table, vocabulary)
    symbol = min(vocabulary.special_ids - set(vocabulary.eos_token_ids))
    return device_tables(
        table,
        vocabulary,
        mask=walk.mask,
        forced_tokens=[-1] * len(table),
        symbol_ids=[symbol],
    )


def test_tables_advance_as_the_walk_does(tables: DeviceTables) -> None:
    vocabulary = tiny_vocabulary()
    table = tables.transitions.numpy()
    walk = TokenWalk(table, vocabulary)
    symbol = int((tables.token_lengths < 0).nonzero()[0, 0])
    tokens = torch.arange(vocabulary.vocab_size, dtype=torch.int32)
    for state in range(len(table)):
        after = tables.advance(torch.full_like(tokens, state), tokens).tolist()
        for token_id, text in enumerate(vocabulary.token_bytes):
            expected = walk.walk(state, text) if text else DEAD
            if token_id == symbol:
                expected = int(table[state, 256])
            assert after[token_id] == expected
        assert tables.mask_rows is not None
        row = np.unpackbits(tables.mask_rows[state].numpy().view(np.uint8), bitorder="little")
        allowed = [bool(a) and i != symbol for i, a in enumerate(after)]
        assert row[: vocabulary.vocab_size].astype(bool).tolist() == allowed


def test_mask_rows_are_bounded(tables: DeviceTables) -> None:
    vocabulary = tiny_vocabulary()
    table = tables.transitions.numpy()
    asked: list[int] = []

    def mask(state: int) -> np.ndarray:
        asked.append(state)
        return np.zeros(vocabulary.num_words, np.int32)

    needed = 4 * len(table) * vocabulary.num_words
    for limit, fits in ((needed, True), (needed - 1, False)):
        asked.clear()
        made = device_tables(
            table,
            vocabulary,
            mask=mask,
            forced_tokens=range(len(table)),
            max_mask_bytes=limit,
        )
        assert (made.mask_rows is not None) == fits == (asked == list(range(len(table))))
        assert made.forced_tokens.tolist() == list(range(len(table)))
    assert tables.num_bytes - made.num_bytes == needed


def test_to_moves_every_tensor(tables: DeviceTables) -> None:
    moved = tables.to("meta")
    for name in ("transitions", "token_bytes", "token_lengths", "mask_rows", "forced_tokens"):
        assert getattr(moved, name).device.type == "meta"
        assert getattr(moved, name).shape == getattr(tables, name).shape
