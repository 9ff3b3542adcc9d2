"""The tables of an automaton and a vocabulary as tensors: a device advances and masks by itself.

With a state per row the device needs no masks from the host: logits are masked by
`mask_rows[state]`, a level of a draft tree moves on with one `advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.grammars.vocabulary import Vocabulary
from specrt.kernels.grammar import grammar_advance

MAX_MASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """What a device needs to follow a grammar.

    Attributes:
        transitions: int32 [S, 256 + k], the state behind each byte and each special symbol; row 0
            is dead.
        token_bytes: uint8 [V, longest token].
        token_lengths: int32 [V]: n > 0 = so many bytes, 0 = never allowed, -n = the special symbol
            of column 255 + n.
        mask_rows: int32 [S, W], the token bitmask of each state; None where that is too much memory
            and masks come from the host.
        forced_tokens: int32 [S], the canonical token that must come next, -1 = there is a choice.
    """

    transitions: Tensor
    token_bytes: Tensor
    token_lengths: Tensor
    mask_rows: Tensor | None
    forced_tokens: Tensor

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The states behind one token each: int32 [n], int32 [n] -> int32 [n], 0 = not allowed."""
        return grammar_advance(
            states, tokens, self.transitions, self.token_bytes, self.token_lengths
        )

    def to(self, device: str | torch.device) -> DeviceTables:
        """The same on a device."""
        return replace(
            self,
            transitions=self.transitions.to(device),
            token_bytes=self.token_bytes.to(device),
            token_lengths=self.token_lengths.to(device),
            mask_rows=None if self.mask_rows is None else self.mask_rows.to(device),
            forced_tokens=self.forced_tokens.to(device),
        )

    @property
    def num_bytes(self) -> int:
        """Memory of all tensors."""
        tensors = [self.transitions, self.token_bytes, self.token_lengths, self.forced_tokens]
        return sum(t.nbytes for t in tensors) + (
            0 if self.mask_rows is None else self.mask_rows.nbytes
        )


def device_tables(
    table: npt.NDArray[np.int32],
    vocabulary: Vocabulary,
    *,
    mask: Callable[[int], npt.NDArray[np.int32]],
    forced_tokens: Sequence[int],
    symbol_ids: Sequence[int] = (),
    max_mask_bytes: int = MAX_MASK_BYTES,
) -> DeviceTables:
    """Make the tensors, on the CPU.

    Args:
        table: int32 [S, 256 + len(symbol_ids)], row 0 all 0 (dead).
        vocabulary: the model's tokens.
        mask: the bitmask row of a state, int32 [W]; asked for every state where the rows fit.
        forced_tokens: S ids, -1 = there is a choice.
        symbol_ids: special tokens that are symbols of the table, in the order of its columns.
        max_mask_bytes: most memory of all mask rows.
    """
    lengths = np.array([len(text) for text in vocabulary.token_bytes], np.int32)
    texts = np.zeros((vocabulary.vocab_size, max(int(lengths.max()), 1)), np.uint8)
    is_inside = np.arange(texts.shape[1]) < lengths[:, None]
    texts[is_inside] = np.frombuffer(b"".join(vocabulary.token_bytes), np.uint8)
    for index, token_id in enumerate(symbol_ids, start=1):
        lengths[token_id] = -index
    num_states = len(table)
    rows = None
    if 4 * num_states * vocabulary.num_words <= max_mask_bytes:
        rows = torch.from_numpy(np.stack([mask(state) for state in range(num_states)]))
    return DeviceTables(
        transitions=torch.from_numpy(np.array(table, np.int32)),
        token_bytes=torch.from_numpy(texts),
        token_lengths=torch.from_numpy(lengths),
        mask_rows=rows,
        forced_tokens=torch.tensor(forced_tokens, dtype=torch.int32),
    )
