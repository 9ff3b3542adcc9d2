"""The grammar step on the device: the automaton states behind tokens, many at a time.

A Triton kernel on CUDA tensors, a plain twin in torch everywhere else; states are exact integers,
so the two agree on every input.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

DEAD = 0
NUM_BYTES = 256

_PAIRS_PER_PROGRAM = 64


def grammar_advance(
    states: Tensor,
    tokens: Tensor,
    transitions: Tensor,
    token_bytes: Tensor,
    token_lengths: Tensor,
) -> Tensor:
    """Advance n states by one token each.

    Args:
        states: int32 [n], rows of `transitions`.
        tokens: int32 [n]; ids outside of the vocabulary (padding) lead to DEAD.
        transitions: int32 [S, 256 + number of special symbols], row DEAD all DEAD.
        token_bytes: uint8 [V, longest token]; a row is read up to the token's length.
        token_lengths: int32 [V]: n > 0 = so many bytes; 0 = never allowed; -n = the special symbol
            of column 255 + n.

    Returns:
        int32 [n], DEAD where the token is not allowed.
    """
    if triton is not None and states.is_cuda:
        return triton_advance(states, tokens, transitions, token_bytes, token_lengths)
    return plain_advance(states, tokens, transitions, token_bytes, token_lengths)


def plain_advance(
    states: Tensor,
    tokens: Tensor,
    transitions: Tensor,
    token_bytes: Tensor,
    token_lengths: Tensor,
) -> Tensor:
    """`grammar_advance` in torch, a byte of all tokens at a time."""
    is_known = (tokens >= 0) & (tokens < len(token_lengths))
    known = torch.where(is_known, tokens, 0).long()
    lengths = torch.where(is_known, token_lengths[known], 0)
    texts = token_bytes[known].long()
    after = states.long()
    for place in range(int(lengths.max()) if len(lengths) else 0):
        after = torch.where(place < lengths, transitions[after, texts[:, place]].long(), after)
    columns = torch.where(lengths < 0, NUM_BYTES - 1 - lengths, 0)
    special = transitions[states.long(), columns.long()].long()
    after = torch.where(lengths > 0, after, torch.where(lengths < 0, special, DEAD))
    return after.int()


def triton_advance(
    states: Tensor,
    tokens: Tensor,
    transitions: Tensor,
    token_bytes: Tensor,
    token_lengths: Tensor,
) -> Tensor:
    """`grammar_advance` by the Triton kernel; tensors are contiguous."""
    after = torch.empty_like(states)
    if len(states):
        _advance_kernel[(triton.cdiv(len(states), _PAIRS_PER_PROGRAM),)](
            states,
            tokens,
            transitions,
            token_bytes,
            token_lengths,
            after,
            len(states),
            len(token_lengths),
            transitions.shape[1],
            token_bytes.shape[1],
            PAIRS=_PAIRS_PER_PROGRAM,
        )
    return after


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _advance_kernel(  # type: ignore[no-untyped-def]  # noqa: D103
        states,
        tokens,
        transitions,
        token_bytes,
        token_lengths,
        after,
        num_pairs,
        num_tokens,
        num_symbols,
        longest,
        PAIRS: tl.constexpr,
    ):
        pairs = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
        is_pair = pairs < num_pairs
        token = tl.load(tokens + pairs, mask=is_pair, other=-1)
        is_known = (token >= 0) & (token < num_tokens)
        length = tl.load(token_lengths + token, mask=is_known, other=0)
        before = tl.load(states + pairs, mask=is_pair, other=0)
        state = tl.where(length > 0, before, 0)
        for place in range(0, tl.max(length, axis=0)):
            is_inside = place < length
            byte = tl.load(token_bytes + token * longest + place, mask=is_inside, other=0)
            row = transitions + state * num_symbols
            state = tl.load(row + byte.to(tl.int32), mask=is_inside, other=0) + tl.where(
                is_inside, 0, state
            )
        row = transitions + before * num_symbols
        special = tl.load(row + (255 - length), mask=length < 0, other=0)
        tl.store(after + pairs, tl.where(length < 0, special, state), mask=is_pair)
