"""How the head unrolls over generated tokens: which rows each pass computes, and what they predict.

A chain starts at a true row and goes on as drafting does: one decision, then the forced run behind
it, is one segment. All rows of a segment take the output of the row before the segment as their
feature, and its last row predicts the next decision. Forced tokens are never predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from specrt.train.packs import Pack

# Forced tokens that one segment may cross; the chain ends before a longer run.
MAX_RUN = 24


class Segment(NamedTuple):
    """Consecutive rows of a branch, computed in one pass.

    Attributes:
        first: row of its first token.
        length: rows.
        depth: decisions before the one that its last row predicts; -1 if it predicts none.
    """

    first: int
    length: int
    depth: int


Chain = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """One segment each of the first n chains, laid out one after the other: N rows.

    Attributes:
        rows: int64 [N], rows of the tree.
        owners: int64 [N], which chain each belongs to.
        columns: int64 [N], place inside the segment.
        features: int64 [N], row of the previous pass whose output is the feature; the first pass
            takes true features and has zeros here.
        predicting: int64 [P], which of the N rows predict.
        num_chains: n.
        width: rows of the longest segment.
    """

    rows: Tensor
    owners: Tensor
    columns: Tensor
    features: Tensor
    predicting: Tensor
    num_chains: int
    width: int

    def to(self, device: torch.device) -> Pass:
        """The same on another device."""
        return Pass(
            rows=self.rows.to(device),
            owners=self.owners.to(device),
            columns=self.columns.to(device),
            features=self.features.to(device),
            predicting=self.predicting.to(device),
            num_chains=self.num_chains,
            width=self.width,
        )


@dataclass(frozen=True, slots=True)
class Unroll:
    """Chains side by side.

    Attributes:
        passes: in the order they run; every segment's predecessor is in the pass before.
        rows: int64 [P], tree rows that predict, over all passes in order.
        chains: int64 [P], index of the chain, as given to `plan`.
        depths: int64 [P], decisions before the predicted one.
    """

    passes: tuple[Pass, ...]
    rows: Tensor
    chains: Tensor
    depths: Tensor

    def to(self, device: torch.device) -> Unroll:
        """The same on another device."""
        passes = tuple(one.to(device) for one in self.passes)
        tensors = (self.rows, self.chains, self.depths)
        return Unroll(passes, *(tensor.to(device) for tensor in tensors))


def chain(
    start: int, end: int, forced: Sequence[bool], steps: int, *, cross_runs: bool = True
) -> Chain:
    """The chain that starts at a row of a branch.

    Args:
        start: its first row, a true one.
        end: first row behind the branch.
        forced: by row: the grammar left only this token.
        steps: decisions to predict at most.
        cross_runs: False feeds forced tokens one by one, each with the output of the one before.

    Returns:
        Its segments; the last one predicts. Empty if there is nothing to predict.
    """
    segments = [Segment(start, 1, -1)]
    depth = run = useful = 0
    while depth < steps:
        first = segments[-1].first + segments[-1].length
        if first >= end:
            break
        if not forced[first]:
            segments[-1] = segments[-1]._replace(depth=depth)
            useful = len(segments)
            depth, run = depth + 1, 0
        last = first + 1
        while cross_runs and last < end and forced[last]:
            last += 1
        run += sum(forced[first:last])
        if run > MAX_RUN:
            break
        segments.append(Segment(first, last - first, -1))
    return tuple(segments[:useful])


def branch_chains(pack: Pack, steps: int, *, cross_runs: bool = True) -> list[Chain]:
    """The chains of all generated tokens, those that predict nothing left out.

    Every token that a chain reads or predicts is generated, the row's own included.

    Args:
        pack: a tree of tokens.
        steps: decisions to predict at most.
        cross_runs: see `chain`.
    """
    forced = pack.forced.tolist()
    chains = [
        chain(row, first + length, forced, steps, cross_runs=cross_runs)
        for first, length in pack.branches.tolist()
        for row in range(first, first + length)
    ]
    return [one for one in chains if one]


def trunk_chains(pack: Pack) -> list[Chain]:
    """One-row chains of the tokens that were not generated; the first token has no row."""
    is_trunk = pack.parent >= 0
    for first, length in pack.branches.tolist():
        is_trunk[first : first + length] = False
    return [(Segment(row, 1, 0),) for row in is_trunk.nonzero().squeeze(-1).tolist()]


def plan(chains: Sequence[Chain]) -> Unroll:
    """Lay chains out pass by pass.

    The longest come first, so that the chains of a pass are the first ones of the pass before.
    """
    order = sorted(range(len(chains)), key=lambda index: -len(chains[index]))
    passes: list[Pass] = []
    rows: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    depths: list[np.ndarray] = []
    before = np.zeros(len(chains), dtype=np.int64)
    for index in range(max(map(len, chains), default=0)):
        segments = [chains[owner][index] for owner in order if len(chains[owner]) > index]
        first, length, depth = np.array(segments, dtype=np.int64).T
        ends = np.cumsum(length)
        owner = np.repeat(np.arange(len(segments)), length)
        column = np.arange(ends[-1]) - np.repeat(ends - length, length)
        row = np.repeat(first, length) + column
        predicts = depth >= 0
        predicting = (ends - 1)[predicts]
        passes.append(
            Pass(
                rows=torch.from_numpy(row),
                owners=torch.from_numpy(owner),
                columns=torch.from_numpy(column),
                features=torch.from_numpy(np.repeat(before[: len(segments)], length)),
                predicting=torch.from_numpy(predicting),
                num_chains=len(segments),
                width=int(length.max()),
            )
        )
        rows.append(row[predicting])
        owners.append(np.array(order, dtype=np.int64)[: len(segments)][predicts])
        depths.append(depth[predicts])
        before = ends - 1
    joined = (np.concatenate(part or [np.zeros(0, np.int64)]) for part in (rows, owners, depths))
    return Unroll(tuple(passes), *map(torch.from_numpy, joined))
