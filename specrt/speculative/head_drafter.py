"""Drafts of a neural head: the target's likely next tokens under the grammar.

Each wave of the tree is one pass of the head over the best frontier nodes of all requests. A node
that the head has not read (a forced run, a choice, a piece of history) is crossed on the way to the
next one that it shall continue: the tokens of such a path share the output of the last row that
predicted something and see each other.

Candidates are masked by the grammar before the best are taken. At a temperature the ranking looks
at the same noise as the target's draw will: the draw is a function of seed, position and token, so
a good guess of the logits is a good guess of the token.
Source: EAGLE-2 (arXiv 2406.16858), section 4: expansion by path probability, then one ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import Region
from specrt.kernels.noise import approximate_gumbel, noise_words
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import Pace, PassCost

if TYPE_CHECKING:
    from torch import Tensor

    from specrt.draft_heads.runner import HeadRunner

# Tokens whose noise is drawn at a temperature; the target's choice is rarely further down.
_MAX_RACERS = 32
# Without any candidate from the draft vocabulary, allowed tokens outside of it are tried.
_MAX_OUTSIDE = 4
# How often a head's first candidate is taken, before any was proposed, and how fast that fades.
_FIRST_HIT = 0.5
_HIT_DECAY = 0.98
# Temperatures below are plain argmax (see sampling.sampler).
_MIN_TEMPERATURE = 1e-5
_OUTSIDE_BUCKET = -1


class _Draft:
    """One request's tree in the making, as far as the head has read it."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.outs: dict[int, Tensor] = {}  # node -> output of its row
        self.levels: dict[int, int] = {}  # node -> predictions on the path down to it
        self.slots: dict[int, int] = {}  # node -> slot of its row; the root's is the request's
        self.taken: list[int] = []

    def unread(self, node: int) -> list[int]:
        """The nodes of the path that the head has not read, from the top, `node` the last."""
        path = []
        while node not in self.outs and node > 0:
            path.append(node)
            node = self.tree.parent[node]
        return path[::-1]

    def last_read(self, node: int) -> int:
        """The lowest node above (or at) `node` whose row predicted something; 0 = the root."""
        while node not in self.outs and node > 0:
            node = self.tree.parent[node]
        return node

    def slots_above(self, node: int) -> list[int]:
        """Slots of the rows from below the root down to `node`'s parent."""
        slots = []
        node = self.tree.parent[node]
        while node > 0:
            slots.append(self.slots[node])
            node = self.tree.parent[node]
        return slots[::-1]


class HeadDrafter:
    """Proposes what a draft head predicts."""

    source = "eagle"

    def __init__(
        self,
        runner: HeadRunner,
        calibration: Calibration,
        pace: Pace,
        *,
        vocab_size: int,
        num_steps: int = 5,
        topk: int = 4,
        target_cost: PassCost | None = None,
        head_cost: PassCost | None = None,
        is_masked: bool = True,
    ) -> None:
        """Draft with a head.

        Args:
            runner: the head over the KV store.
            calibration: turns its probabilities into acceptance rates.
            pace: what a token costs lately; told what waves cost.
            vocab_size: of the target.
            num_steps: predictions on a path at most.
            topk: candidates of a node, and nodes of a request read in one wave, at most.
            target_cost: seconds of a target pass by rows; None = waves are free.
            head_cost: seconds of a wave by rows.
            is_masked: take the best of the tokens that the grammar allows. False takes the best of
                all and drops what is forbidden: what the mask is worth shows in comparison.
        """
        self._runner = runner
        self._calibration = calibration
        self._pace = pace
        self._hit = _FIRST_HIT  # expected acceptance of a first candidate, lately
        self._num_steps = num_steps
        self._topk = topk
        self._is_masked = is_masked
        self._target_cost = target_cost
        self._head_cost = head_cost
        self._mask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
        self._drafts: dict[str, _Draft] = {}
        self._free = runner.scratch_slots.tolist()

    def open(self, request: DraftRequest) -> None:
        """Nothing to prepare: rows are made when a draft needs them."""
        self.close(request.request_id)

    def close(self, request_id: str) -> None:
        """Give back the scratch of its last tree."""
        draft = self._drafts.pop(request_id, None)
        if draft is not None:
            self._free += draft.taken

    def extend(self, request: DraftRequest) -> None:
        """What was drafted is past: rows of accepted tokens are made from true features."""
        self.close(request.request_id)

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Read the most valuable nodes and propose their likely children."""
        proposals: list[list[Candidate]] = [[] for _ in frontier]
        places = self._worth_reading(frontier)
        if not places:
            return proposals
        self._read_roots([frontier[i] for i in places])
        places = self._read_paths(frontier, places)
        if not places:
            return proposals
        outs = [self._drafts[frontier[i].request.request_id].outs[frontier[i].node] for i in places]
        for i, logits in zip(places, self._runner.logits(outs), strict=True):
            proposals[i] = self._candidates(frontier[i], logits)
        return proposals

    # ---- which nodes -------------------------------------------------------------------------

    def _worth_reading(self, frontier: Sequence[FrontierNode]) -> list[int]:
        """Places of the nodes to read in this wave; none when it would cost more than it gains."""
        by_request: dict[str, list[tuple[float, int]]] = {}
        for place, (request, tree, node, _) in enumerate(frontier):
            draft = self._drafts.get(request.request_id)
            if draft is None or draft.tree is not tree:
                self.close(request.request_id)
                draft = self._drafts[request.request_id] = _Draft(tree)
            is_known = 1 <= request.num_computed_tokens == len(request.token_ids) - 1
            if not is_known or draft.levels.get(draft.last_read(node), 0) >= self._num_steps:
                continue
            reach = tree.probability[node]
            # What other drafters expect to cover already.
            covered = sum(tree.probability[child] for child in tree.children(node))
            by_request.setdefault(request.request_id, []).append((reach - covered, place))
        chosen: list[tuple[float, int]] = []
        for nodes in by_request.values():
            chosen += sorted(nodes, reverse=True)[: self._topk]
        if not chosen:
            return []
        gain = self._hit * sum(max(0.0, value) for value, _ in chosen)
        if self._target_cost is not None and self._head_cost is not None:
            wave_s = self._head_cost.time(len(chosen))
            plain_s = self._target_cost.time(len(by_request)) / len(by_request)
            if gain <= wave_s * self._pace.speedup / plain_s:
                return []
            self._pace.spend(wave_s)
        return sorted(place for _, place in chosen)

    # ---- reading -----------------------------------------------------------------------------

    def _read_roots(self, items: Sequence[FrontierNode]) -> None:
        """The rows of committed tokens, from true features."""
        requests = {
            item.request.request_id: item.request
            for item in items
            if 0 not in self._drafts[item.request.request_id].outs
        }
        if not requests:
            return
        outs = self._runner.extend(
            [(r.token_ids, r.slots[: len(r.token_ids)]) for r in requests.values()]
        )
        for request_id, out in zip(requests, outs, strict=True):
            draft = self._drafts[request_id]
            draft.outs[0], draft.levels[0] = out, 0

    def _read_paths(self, frontier: Sequence[FrontierNode], places: list[int]) -> list[int]:
        """Rows of drafted tokens; returns the places whose node has been read."""
        from specrt.draft_heads.runner import DraftedPath

        paths, readers = [], []
        read = []
        for place in places:
            request, tree, node, _ = frontier[place]
            draft = self._drafts[request.request_id]
            nodes = draft.unread(node)
            if node == 0:
                draft.levels[0] = 1
            if len(nodes) > len(self._free):
                continue
            read.append(place)
            if not nodes:
                continue
            slots = [self._free.pop() for _ in nodes]
            draft.taken += slots
            above = draft.slots_above(nodes[0])
            num_tokens = len(request.token_ids)
            paths.append(
                DraftedPath(
                    token_ids=[tree.token_ids[n] for n in nodes],
                    first_position=num_tokens - 1 + tree.depth[nodes[0]],
                    context_slots=np.concatenate(
                        [request.slots[1:num_tokens], np.array(above, np.int32)]
                    ),
                    row_slots=np.array(slots, np.int32),
                    feature=draft.outs[draft.last_read(node)],
                )
            )
            for n, slot in zip(nodes, slots, strict=True):
                draft.slots.setdefault(n, slot)
            readers.append((draft, node, draft.levels[draft.last_read(node)] + 1))
        if paths:
            for (draft, node, level), out in zip(readers, self._runner.follow(paths), strict=True):
                draft.outs[node], draft.levels[node] = out, level
        return read

    # ---- candidates --------------------------------------------------------------------------

    def _candidates(self, item: FrontierNode, logits: npt.NDArray[np.float32]) -> list[Candidate]:
        request, tree, node, at = item
        grammar_node = tree.grammar_node[node]
        ids = self._runner.draft_token_ids
        if request.grammar is not None and self._is_masked:
            request.grammar.masks([grammar_node], self._mask)
            bits = np.unpackbits(self._mask.view(np.uint8)[0], bitorder="little")
            logits = np.where(bits[ids] != 0, logits, np.float32(-np.inf))
        best = np.argpartition(logits, -min(_MAX_RACERS, len(logits)))[-_MAX_RACERS:]
        best = best[np.isfinite(logits[best])]
        if not len(best):
            return self._outside(request, grammar_node, at.region)
        position = len(request.token_ids) + tree.depth[node]
        scores, total = self._scores(request, logits, best, position)
        level = self._drafts[request.request_id].levels[node]
        is_sampled = request.sampling.temperature >= _MIN_TEMPERATURE
        candidates: list[Candidate] = []
        ranked = np.argsort(-scores, kind="stable")
        for place in (ranked if self._is_masked else ranked[: self._topk]).tolist():
            token_id = int(ids[best[place]])
            after = request.advance(grammar_node, token_id)
            if after is None:
                continue
            share = float(np.exp(scores[place] - total))
            bucket = _bucket(len(candidates), share, level, is_sampled)
            rate = self._calibration.rate(self.source, bucket, share, at.region)
            # 1 would settle the node, which only the grammar may do.
            candidates.append(Candidate(token_id, min(rate, 0.999), bucket, after))
            if len(candidates) == self._topk:
                break
        candidates.sort(key=lambda c: -c.probability)
        first = candidates[0].probability if candidates else 0.0
        self._hit = _HIT_DECAY * self._hit + (1 - _HIT_DECAY) * first
        return candidates

    def _scores(
        self,
        request: DraftRequest,
        logits: npt.NDArray[np.float32],
        best: npt.NDArray[np.int64],
        position: int,
    ) -> tuple[npt.NDArray[np.float32], float]:
        """Scores of the best tokens, and log(sum(exp(score))): over all, or over those raced."""
        sampling = request.sampling
        if sampling.temperature < _MIN_TEMPERATURE:
            peak = logits[best].max()
            return logits[best], float(peak + np.log(np.exp(logits - peak).sum()))
        words = noise_words(
            sampling.seed, sampling.choice_index, position, self._runner.draft_token_ids[best]
        )
        scores = logits[best] / np.float32(sampling.temperature) + approximate_gumbel(words)
        peak = scores.max()
        return scores, float(peak + np.log(np.exp(scores - peak).sum()))

    def _outside(self, request: DraftRequest, grammar_node: int, region: Region) -> list[Candidate]:
        """Few allowed tokens, none of which the head can name: each is as likely as the others."""
        grammar = request.grammar
        allowed = grammar.allowed(grammar_node, _MAX_OUTSIDE) or [] if grammar else []
        candidates = []
        for token_id in allowed:
            after = request.advance(grammar_node, token_id)
            if after is not None:
                prior = 1 / len(allowed)
                rate = self._calibration.rate(self.source, _OUTSIDE_BUCKET, prior, region)
                candidates.append(Candidate(token_id, min(rate, 0.999), _OUTSIDE_BUCKET, after))
        return candidates


def _bucket(place: int, share: float, level: int, is_sampled: bool) -> int:
    """Statistics key of a candidate: rank, probability in tenths, level, drawn or best."""
    tenth = min(int(share * 10), 9)
    return ((min(place, 3) * 10 + tenth) * 4 + min(level, 4) - 1) * 2 + is_sampled
