"""How often a head is right, by depth, on packs it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.bench.reliability import Reliability
from specrt.grammars.json_region import REGIONS, Region
from specrt.train.grammar_masks import GrammarMasks
from specrt.train.head_module import TrainableHead, Tree
from specrt.train.objective import OUTSIDE, Teacher, masked
from specrt.train.segments import Unroll, branch_chains, plan

if TYPE_CHECKING:
    from specrt.train.packs import Pack

# The two ways to count: the head's first choice (a chain), or any of its first four (a tree).
WIDTHS = (1, 4)
_UNKNOWN = -1


class TurnLabels(NamedTuple):
    """What a report tells turns and tokens apart by.

    Attributes:
        source: data set of the turn; "" = not known.
        regions: of its output tokens.
    """

    source: str
    regions: Sequence[Region]


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

    def share(self, width: int = 1) -> float | None:
        """Of all decisions tried, how many were right; None without one."""
        tried = sum(self.tried.get(width, []))
        return sum(self.right[width]) / tried if tried else None

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


@dataclass(slots=True)
class Walk:
    """Turns decoded as an engine would: the next chain starts behind what the last one yields.

    Chains of the head's first choices and forced text alone, every chain as deep as was looked
    ahead. The first token of a turn is given, as a prefill yields one.

    Attributes:
        passes: chains that were walked.
        tokens: what they yielded, forced tokens included.
        decisions: of these, those that the grammar left open.
    """

    passes: int = 0
    tokens: int = 0
    decisions: int = 0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per pass; None without a pass."""
        return self.tokens / self.passes if self.passes else None

    def add(self, first: int, length: int, forced: Sequence[bool], kept: Mapping[int, int]) -> None:
        """Walk one turn.

        Args:
            first: its first row.
            length: its rows.
            forced: by row: the grammar left only this token.
            kept: first row of a chain -> decisions that it got right; 0 where there is none.
        """
        decisions = [row for row in range(first + 1, first + length) if not forced[row]]
        self.tokens += length - 1
        self.decisions += len(decisions)
        row, done = first, 0
        while row < first + length - 1:
            self.passes += 1
            done += kept.get(row, 0) + 1  # the draw behind the last right one is given
            if done > len(decisions):
                return
            row = decisions[done - 1]


@dataclass(slots=True)
class Measured:
    """What was measured of a head.

    Attributes:
        total: of all chains.
        by_source: data set -> of its chains.
        by_region: region of the decided token -> decisions in it, by their depth in the chain.
        reliability: the head's probabilities of its first four tokens, at decisions that its first
            choices led to, against the target's choice.
        walk: the turns decoded from end to end.
    """

    total: Acceptance = field(default_factory=Acceptance)
    by_source: dict[str, Acceptance] = field(default_factory=dict)
    by_region: dict[Region, Acceptance] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    walk: Walk = field(default_factory=Walk)


def evaluate(
    head: TrainableHead,
    teacher: Teacher,
    packs: Sequence[Callable[[], Pack]],
    steps: int,
    *,
    cross_runs: bool = True,
    max_starts: int = 384,
    labels: Mapping[str, TurnLabels] | None = None,
    masks: GrammarMasks | None = None,
) -> Measured:
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
        labels: turn id -> what it is; None = only the total is told.
        masks: what the grammar allowed; None = everything, everywhere.
    """
    found = Measured()
    device = next(head.parameters()).device
    for load in packs:
        pack = load()
        chains = branch_chains(pack, steps, cross_runs=cross_runs)
        tree = Tree.of(pack, device)
        rows_of = _LabelledRows(pack, labels or {})
        kept: dict[int, int] = {}
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
            starts = np.array([one[0].first for one in some])
            for width in WIDTHS:
                right = right_so_far(hits[:, :width].any(dim=1), unroll, len(some), steps)
                _count(found, width, right.cpu().numpy(), unroll, starts, rows_of)
                if width == 1:
                    kept |= zip(starts.tolist(), (right == 1).sum(dim=1).tolist(), strict=True)
                    is_tried = right[unroll.chains, unroll.depths] != _UNKNOWN
                    shares = logits[is_tried].softmax(dim=-1).gather(1, top[is_tried])
                    is_proposed = shares > 0  # others, the grammar forbids
                    found.reliability.add(
                        shares[is_proposed].cpu().numpy(), hits[is_tried][is_proposed].cpu().numpy()
                    )
        for first, length in pack.branches.tolist():
            found.walk.add(first, length, pack.forced.tolist(), kept)
    return found


def right_so_far(hits: Tensor, unroll: Unroll, num_chains: int, steps: int) -> Tensor:
    """How far each chain got.

    Args:
        hits: bool [P], whether each prediction of the unroll is right.
        unroll: what was predicted.
        num_chains: chains in it.
        steps: decisions of a chain at most.

    Returns:
        int64 [num_chains, steps]: 1 = all decisions up to this one are right, 0 = this one is the
        first wrong one, -1 = not tried: an earlier one was wrong, or there is none.
    """
    grid = torch.full((num_chains, steps), _UNKNOWN, dtype=torch.int64, device=hits.device)
    grid[unroll.chains, unroll.depths] = hits.long()
    was_right = (grid == 1).cummin(dim=1).values
    got_there = torch.cat((torch.ones_like(was_right[:, :1]), was_right[:, :-1]), dim=1)
    return grid.masked_fill(~got_there, _UNKNOWN)


def by_depth(right: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Of rows of `right_so_far`, by depth: decisions that were tried, and those that were right."""
    tried: list[int] = (right != _UNKNOWN).sum(axis=0).tolist()
    kept: list[int] = (right == 1).sum(axis=0).tolist()
    return tried, kept


class _LabelledRows:
    """Sources and regions by row of a pack."""

    def __init__(self, pack: Pack, labels: Mapping[str, TurnLabels]) -> None:
        sources = {labels[turn_id].source for turn_id in pack.turn_ids if turn_id in labels}
        self.names = sorted(sources - {""})
        # The row of a token predicts the next one, so the last row of a turn predicts nothing.
        self.source = np.full(len(pack.token_ids), _UNKNOWN)
        self.next_region = np.full(len(pack.token_ids), _UNKNOWN)
        for turn_id, (first, length) in zip(pack.turn_ids, pack.branches.tolist(), strict=True):
            if turn_id in labels:
                source, regions = labels[turn_id]
                if source:
                    self.source[first : first + length] = self.names.index(source)
                indices = [REGIONS.index(region) for region in regions]
                self.next_region[first : first + length - 1] = indices[1:]


def _count(
    found: Measured,
    width: int,
    right: npt.NDArray[np.int64],
    unroll: Unroll,
    starts: npt.NDArray[np.int64],
    rows_of: _LabelledRows,
) -> None:
    """Add the chains of one unroll."""
    found.total.add(width, *by_depth(right))
    for index, name in enumerate(rows_of.names):
        part = right[rows_of.source[starts] == index]
        if len(part):
            found.by_source.setdefault(name, Acceptance()).add(width, *by_depth(part))
    chains, depths = unroll.chains.cpu().numpy(), unroll.depths.cpu().numpy()
    regions = np.full(right.shape, _UNKNOWN)
    regions[chains, depths] = rows_of.next_region[unroll.rows.cpu().numpy()]
    for index, region in enumerate(REGIONS):
        part = np.where(regions == index, right, _UNKNOWN)
        if (part != _UNKNOWN).any():
            found.by_region.setdefault(region, Acceptance()).add(width, *by_depth(part))
