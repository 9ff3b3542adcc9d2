"""Packs: token trees that several turns share, so that a common prompt is computed once.

prompt rows (a trie) ──┬── output of turn 0
                       ├── more prompt ── output of turn 1
                       └── output of turn 2
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specrt.train.turn_file import Turn

# Packs that still take turns: more find more shared prompts, and leave more half-full packs.
_NUM_OPEN = 8


@dataclass(frozen=True, slots=True)
class PackTree:
    """A tree (or several) of T tokens; all turns in it are trained on, or none.

    Attributes:
        token_ids: int64 [T].
        parent: int64 [T], row of the token before, below the row itself; -1 for a first token.
        position: int64 [T], tokens before it on its path.
        branches: int64 [B, 2], first row and length of each turn's output; its rows are
            consecutive, and no other turn shares them.
        forced: bool [T], the grammar left only this token; False outside of branches.
        held: whether the turns are held out.
        turn_ids: of the B branches.
    """

    token_ids: Tensor
    parent: Tensor
    position: Tensor
    branches: Tensor
    forced: Tensor
    held: bool
    turn_ids: tuple[str, ...]

    def digest(self) -> str:
        """SHA-256 of all of it, hex."""
        digest = hashlib.sha256(repr((self.held, self.turn_ids)).encode())
        for name in ("token_ids", "parent", "position", "branches", "forced"):
            digest.update(getattr(self, name).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Pack(PackTree):
    """A tree with what the target computed over it (H: its hidden size).

    Attributes:
        captured: bfloat16 [T, layers * H], residual streams that enter the captured layers.
        hidden: bfloat16 [T, H], residual stream behind the last layer, before the final norm.
    """

    captured: Tensor
    hidden: Tensor


@dataclass(slots=True)
class _OpenPack:
    """A tree that grows."""

    held: bool
    token_ids: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)
    turn_ids: list[str] = field(default_factory=list)
    # (row, token) -> the prompt row that continues it.
    prompts: dict[tuple[int, int], int] = field(default_factory=dict)

    def num_shared(self, prompt_ids: Sequence[int]) -> int:
        """Tokens of a prompt that have rows already."""
        row = -1
        for count, token_id in enumerate(prompt_ids):
            found = self.prompts.get((row, token_id))
            if found is None:
                return count
            row = found
        return len(prompt_ids)

    def add(self, turn: Turn) -> None:
        row = -1
        for position, token_id in enumerate(turn.prompt_ids):
            found = self.prompts.get((row, token_id))
            if found is None:
                found = self._append(token_id, row, position, False)
                self.prompts[row, token_id] = found
            row = found
        self.branches.append((len(self.token_ids), len(turn.output_ids)))
        self.turn_ids.append(turn.id)
        output = zip(turn.output_ids, turn.forced, strict=True)
        for position, (token_id, forced) in enumerate(output, start=len(turn.prompt_ids)):
            row = self._append(token_id, row, position, forced)

    def _append(self, token_id: int, parent: int, position: int, forced: bool) -> int:
        self.token_ids.append(token_id)
        self.parent.append(parent)
        self.position.append(position)
        self.forced.append(forced)
        return len(self.token_ids) - 1

    def tree(self) -> PackTree:
        return PackTree(
            token_ids=torch.tensor(self.token_ids, dtype=torch.int64),
            parent=torch.tensor(self.parent, dtype=torch.int64),
            position=torch.tensor(self.position, dtype=torch.int64),
            branches=torch.tensor(self.branches, dtype=torch.int64),
            forced=torch.tensor(self.forced, dtype=torch.bool),
            held=self.held,
            turn_ids=tuple(self.turn_ids),
        )


def build_packs(turns: Sequence[Turn], max_rows: int = 1536) -> tuple[list[PackTree], int]:
    """Pack turns in the order given: each goes where it shares most of its prompt.

    Args:
        turns: training and held-out ones.
        max_rows: tokens of one tree at most.

    Returns:
        The trees in the order in which they were begun, and how many turns were left out because
        they alone are longer.
    """
    begun: list[_OpenPack] = []
    open_packs: dict[bool, list[_OpenPack]] = {False: [], True: []}
    left_out = 0
    for turn in turns:
        length = len(turn.prompt_ids) + len(turn.output_ids)
        if length > max_rows:
            left_out += 1
            continue
        candidates = open_packs[turn.is_held]
        best, best_shared = None, -1
        for pack in candidates:
            shared = pack.num_shared(turn.prompt_ids)
            if shared > best_shared and len(pack.token_ids) + length - shared <= max_rows:
                best, best_shared = pack, shared
        is_related = 2 * best_shared >= len(turn.prompt_ids)
        if best is None or (not is_related and len(candidates) < _NUM_OPEN):
            if len(candidates) == _NUM_OPEN:
                candidates.remove(max(candidates, key=lambda pack: len(pack.token_ids)))
            best = _OpenPack(turn.is_held)
            candidates.append(best)
            begun.append(best)
        best.add(turn)
    return [pack.tree() for pack in begun], left_out
