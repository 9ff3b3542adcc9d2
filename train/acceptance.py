"""How often a head is right, by depth, on packs it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specrt.train.grammar_masks import GrammarMasks
from specrt.train.head_module import TrainableHead, Tree
from specrt.train.objective import OUTSIDE, Teacher, masked
from specrt.train.segments import branch_chains, plan

if TYPE_CHECKING:
    from specrt.train.packs import Pack

# The two ways to count: the head's first choice (a chain), or any of its first four (a tree).
WIDTHS = (1, 4)


@dataclass(slots=True)
class Acceptance:
    """Counts by depth, in decisions: of the chains right so far, how many were right once more.

    Attributes:
        tried: width -> by depth, chains whose earlier decisions were all right.
        right: width -> by depth, those whose next decision was right too.
    """

    tried: dict[int, list[int]] = field(default_factory=dict)
    right: dict[int, list[int]] = field(default_factory=dict)

    def rates(self, width: int = 1) -> list[float]:
        """Conditional acceptance c_s by depth, 0 to 1; 0 where nothing was tried."""
        counts = zip(self.right.get(width, []), self.tried.get(width, []), strict=True)
        return [right / tried if tried else 0.0 for right, tried in counts]

    def tau_sim(self, width: int = 1) -> float:
        """Tokens per pass if every decision were drafted: 1 + sum_k prod_{i <= k} c_i."""
        total = reached = 1.0
        for rate in self.rates(width):
            reached *= rate
            total += reached
        return total

    def add(self, width: int, tried: Sequence[int], right: Sequence[int]) -> None:
        """Add counts by depth."""
        for counts, more in ((self.tried, tried), (self.right, right)):
            known = counts.setdefault(width, [0] * len(more))
            counts[width] = [a + b for a, b in zip(known, more, strict=True)]


def evaluate(
    head: TrainableHead,
    teacher: Teacher,
    packs: Sequence[Callable[[], Pack]],
    steps: int,
    *,
    cross_runs: bool = True,
    max_starts: int = 384,
    source_of: Callable[[str], str] = lambda turn_id: "",
    masks: GrammarMasks | None = None,
) -> dict[str, Acceptance]:
    """Measure a head on all generated tokens of some packs.

    Right is what the target itself would say: its first choice among all tokens that the grammar
    allows. A token outside the draft vocabulary is therefore never drafted right.

    Args:
        head: on the device to compute on.
        teacher: of the head's target and draft vocabulary, on the same device.
        packs: loaders of packs.
        steps: decisions to look ahead.
        cross_runs: how forced runs are crossed, see `segments.chain`.
        max_starts: chains at once.
        source_of: where the turn with an id comes from; "" = not known.
        masks: what the grammar allowed; None = everything, everywhere.

    Returns:
        Source -> counts; "" has the total.
    """
    found: dict[str, Acceptance] = {"": Acceptance()}
    device = next(head.parameters()).device
    for load in packs:
        pack = load()
        chains = branch_chains(pack, steps, cross_runs=cross_runs)
        tree = Tree.of(pack, device)
        sources = _sources(pack, source_of)
        for first in range(0, len(chains), max_starts):
            some = chains[first : first + max_starts]
            unroll = plan(some).to(device)
            with torch.no_grad():
                logits = head(tree, unroll)
            rows, places = torch.unique(unroll.rows, return_inverse=True)
            allowed = None
            if masks is not None:
                allowed = masks.allowed(masks.of(pack)[rows.cpu()], teacher.vocab_size).to(device)
                logits = masked(logits, teacher.draft_part(allowed)[places])
            top = logits.topk(min(max(WIDTHS), logits.shape[-1])).indices
            expected = teacher.best(pack.hidden.to(device)[rows], allowed)[places]
            hits = (top == expected[:, None]) & (expected != OUTSIDE)[:, None]
            origins = np.array([sources[one[0].first] for one in some])
            for width in WIDTHS:
                # By chain and depth: 1 right, 0 wrong, -1 not predicted.
                grid = torch.full((len(some), steps), -1, dtype=torch.int64, device=device)
                grid[unroll.chains, unroll.depths] = hits[:, :width].any(dim=1).long()
                found[""].add(width, *_count(grid))
                for name in set(origins.tolist()) - {""}:
                    part = grid[torch.from_numpy(origins == name).to(device)]
                    found.setdefault(name, Acceptance()).add(width, *_count(part))
    return found


def _sources(pack: Pack, source_of: Callable[[str], str]) -> dict[int, str]:
    """Generated row -> source."""
    branches = zip(pack.turn_ids, pack.branches.tolist(), strict=True)
    return {
        row: source_of(turn_id)
        for turn_id, (first, length) in branches
        for row in range(first, first + length)
    }


def _count(grid: Tensor) -> tuple[list[int], list[int]]:
    """By depth: chains that got there, and those that went on."""
    was_right = (grid == 1).cummin(dim=1).values
    got_there = torch.cat((torch.ones_like(was_right[:, :1]), was_right[:, :-1]), dim=1)
    tried = got_there & (grid >= 0)
    right = tried & (grid == 1)
    return tried.sum(dim=0).tolist(), right.sum(dim=0).tolist()
