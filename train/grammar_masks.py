"""Which tokens the grammar allowed where: the head is asked only among those when it drafts.

Masks are made again from the traces at each start (some 0.1 ms a token) rather than kept: most
positions share a few masks, and each is held once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.errors import SpecrtError
from specrt.grammars.base import DEAD, Grammar, GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.vocabulary import Vocabulary
from specrt.train.turn_file import Turn

if TYPE_CHECKING:
    from specrt.train.packs import PackTree

_Row = npt.NDArray[np.int32]  # [num_words]

ANY = -1  # no grammar, or one that has been left


class GrammarMasks:
    """Token masks of generated positions."""

    def __init__(self, num_words: int) -> None:
        """Hold none yet.

        Args:
            num_words: int32 words of one mask.
        """
        self._num_words = num_words
        self._rows: list[_Row] = []
        self._known: dict[bytes, int] = {}
        self._turns: dict[str, Tensor] = {}
        self._table: Tensor | None = None

    def __len__(self) -> int:
        """The number of different masks."""
        return len(self._rows)

    def add(self, turn: Turn, grammar: Grammar) -> None:
        """Walk a grammar along a turn; behind a token that it forbids, any token may come."""
        found = torch.full((len(turn.output_ids),), ANY, dtype=torch.int64)
        state = grammar.open()
        mask = np.zeros((1, self._num_words), dtype=np.int32)
        try:
            for index, token_id in enumerate(turn.output_ids):
                node = state.advance(state.root, token_id)
                if node == DEAD:
                    break
                state.commit(node)
                state.masks([node], mask)
                found[index] = self._intern(mask[0])
        except SpecrtError:  # a limit of the grammar engine
            pass
        self._turns[turn.id] = found

    def of(self, pack: PackTree) -> Tensor:
        """By row of a pack, the mask of what its token is followed by: int64 [T], ANY for none."""
        found = torch.full_like(pack.token_ids, ANY)
        for turn_id, (first, length) in zip(pack.turn_ids, pack.branches.tolist(), strict=True):
            if turn_id in self._turns:
                found[first : first + length] = self._turns[turn_id]
        return found

    def allowed(self, masks: Tensor, vocab_size: int) -> Tensor:
        """Masks as booleans.

        Args:
            masks: int64 [n], as `of` gives them.
            vocab_size: width of the result.

        Returns:
            bool [n, vocab_size], on the CPU.
        """
        if self._table is None:
            everything = np.full(self._num_words, -1, dtype=np.int32)  # row ANY = the last
            self._table = torch.from_numpy(np.stack([*self._rows, everything]))
        words = self._table[masks.cpu()].numpy().view(np.uint8)
        bits = np.unpackbits(words, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))

    def _intern(self, mask: _Row) -> int:
        key = mask.tobytes()
        if key not in self._known:
            self._known[key] = len(self._rows)
            self._rows.append(mask.copy())
            self._table = None
        return self._known[key]


def walk_grammars(
    turns: Iterable[Turn],
    recipes: Mapping[str, GrammarRecipe],
    vocabulary: Vocabulary,
    compiler: GrammarCompiler,
) -> GrammarMasks:
    """The masks of all turns whose output a recipe decided.

    Args:
        turns: as generated.
        recipes: turn id -> what its output had to look like.
        vocabulary: the model's tokens.
        compiler: of the same vocabulary.
    """
    masks = GrammarMasks(vocabulary.num_words)
    for turn in turns:
        recipe = recipes.get(turn.id)
        if recipe is not None:
            masks.add(turn, compiler.compile(recipe))
    return masks
