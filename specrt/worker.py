"""The worker: draft -> ONE target pass over all rows -> accept -> move rows.

It owns everything a pass needs beyond the plan (model, KV tensors, grammar states, drafters,
penalty counts) and hands back ids and counts; logits never leave it. It knows no scheduler, no text
and no client.

Acceptance is sample-then-walk: at each node draw one token from the processed target row; if it is
a child, walk into it, else emit it and stop. The draw depends on the seed and the position alone,
so the output is the same with any tree, or none.
Source: SpecInfer (arXiv 2305.09781), section 4; sampling noise by token id: Gumbel-max.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from specrt.attention.base import AttentionBackend, RowGroup
from specrt.cache.kv_store import KVStore
from specrt.draft_heads.runner import HeadRunner
from specrt.draft_tree import DraftTree
from specrt.errors import RequestError, SpecrtError
from specrt.grammars.base import DEAD, GrammarState
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.json_region import output_place
from specrt.model.decoder import TargetModel
from specrt.plan import OpenedRequest, PlannedRequest, RequestResult, StepPlan, StepResult
from specrt.request import SamplingParams, TokenLogprob
from specrt.sampling import TokenHistory, sample
from specrt.speculative.base import DraftRequest
from specrt.speculative.statistics import tree_stats
from specrt.speculative.tree_builder import TreeBuilder, TreeRequest

logger = logging.getLogger(__name__)

_WORD = 0xFFFFFFFF


@dataclass(slots=True)
class WorkerRequest:
    """The worker's side of a request; `draft.token_ids` is prompt and output so far."""

    draft: DraftRequest
    sampling: SamplingParams
    history: TokenHistory
    grammar: GrammarState | None
    error: str | None = None


@dataclass(slots=True)
class _PassRows:
    """A planned request's rows in the pass: chain rows, then one row a tree node but the root."""

    planned: PlannedRequest
    state: WorkerRequest
    tree: DraftTree | None
    logits_index: dict[int, int]  # tree node -> row of the logits; absent = token is determined


@dataclass(slots=True)
class _Walk:
    """What the target made of a tree.

    Attributes:
        token_ids: accepted tokens, then the bonus token.
        logprobs: theirs, if asked for.
        nodes: the accepted nodes.
        is_stopped: the last token stops the output.
        grammar_node: behind the last token, unless it stops the output.
        num_invalid: children of the nodes that were reached which the grammar forbids.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    nodes: list[int] = field(default_factory=list)
    is_stopped: bool = False
    grammar_node: int = DEAD
    num_invalid: int = 0


class Worker:
    """Executes plans on one device."""

    def __init__(
        self,
        model: TargetModel,
        store: KVStore,
        attention: AttentionBackend,
        compiler: GrammarCompiler,
        builder: TreeBuilder | None,
        eos_token_ids: tuple[int, ...],
        head: HeadRunner | None = None,
    ) -> None:
        """Args:
        model: the target model.
        store: the KV tensors that the plan's slots point into.
        attention: backend over `store`.
        compiler: makes grammars from recipes, cached.
        builder: makes draft trees; None = no speculation.
        eos_token_ids: ids that end an output.
        head: the draft head whose features the pass shall keep.
        """
        self.head = head
        self.model = model
        self.store = store
        self.attention = attention
        self.compiler = compiler
        self.builder = builder
        self.eos_token_ids = frozenset(eos_token_ids)
        self.device = store.keys[0].device
        self.requests: dict[str, WorkerRequest] = {}
        # Told of every verified tree: request, tree, accepted nodes, tokens. For measurements.
        self.on_verified: Callable[[str, DraftTree, list[int], list[int]], object] | None = None
        self._bitmask = np.zeros((1, (model.config.vocab_size + 31) // 32), dtype=np.int32)

    # ---- a step ------------------------------------------------------------------------------

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one pass.

        Returns:
            StepResult: one result a planned request, in order. A request that cannot go on carries
            its error; the others are unaffected.
        """
        for request_id in plan.closed:
            self._close(request_id)
        for opened in plan.opened:
            self._open(opened)
        start = time.perf_counter()
        passes, failed = self._draft(plan.requests)
        drafted = time.perf_counter()
        logits = self._forward(passes)
        forwarded = time.perf_counter()
        results = failed | {p.planned.request_id: self._accept(p, logits) for p in passes}
        return StepResult(
            step_id=plan.step_id,
            requests=tuple(results[p.request_id] for p in plan.requests),
            num_rows=sum(p.planned.num_chain_rows + _num_tree_rows(p.tree) for p in passes),
            draft_s=drafted - start,
            forward_s=forwarded - drafted,
            accept_s=time.perf_counter() - forwarded,
        )

    def time_pass(self, num_rows: int, num_context: int = 256) -> float:
        """Seconds of one pass over `num_rows` decision rows behind a context; for the cost model.

        Overwrites the first slots of the pool: only before any request.
        """
        limit = min(self.store.num_slots - num_rows, self.model.config.max_positions - 2)
        num_context = max(0, min(num_context, limit))
        # Rows beyond a small pool share a slot: the time is the same.
        slots = np.arange(num_context + num_rows, dtype=np.int32) % self.store.num_slots
        group = RowGroup(
            context_slots=slots[:num_context],
            row_slots=slots[num_context:],
            num_chain=1,
            parents=np.zeros(num_rows - 1, dtype=np.int32),
        )
        token_ids = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        positions = torch.full_like(token_ids, num_context + 1)
        rows = torch.arange(num_rows, device=self.device)
        start = time.perf_counter()
        self.attention.plan([group])
        logits = self.model.forward(token_ids, positions, self.attention, rows).logits
        logits[0, 0].item()  # waits for the device
        return time.perf_counter() - start

    # ---- requests ----------------------------------------------------------------------------

    def _open(self, opened: OpenedRequest) -> None:
        """Compile the grammar and bring it up to the output so far (a resumed request has some)."""
        grammar: GrammarState | None = None
        error = None
        output = opened.token_ids[opened.num_prompt_tokens :]
        if opened.grammar is not None:
            try:
                grammar = self.compiler.compile(opened.grammar).open()
                for token_id in output:
                    node = grammar.advance(grammar.root, token_id)
                    assert node != DEAD, "resumed output left its grammar"
                    grammar.commit(node)
            except SpecrtError as exc:
                error = str(exc)
        draft = DraftRequest(
            request_id=opened.request_id,
            token_ids=list(opened.token_ids),
            num_prompt_tokens=opened.num_prompt_tokens,
            grammar=grammar,
            end_token_ids=self._end_token_ids(opened),
            sampling=opened.sampling,
            place=output_place(opened.grammar),
            history_key=opened.history_key,
        )
        history = TokenHistory(opened.token_ids, opened.num_prompt_tokens, opened.sampling)
        self.requests[opened.request_id] = WorkerRequest(
            draft, opened.sampling, history, grammar, error
        )
        if self.builder is not None:
            self.builder.open(draft)

    def _close(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        if self.builder is not None:
            self.builder.close(request_id)

    # ---- draft -------------------------------------------------------------------------------

    def _draft(
        self, planned: tuple[PlannedRequest, ...]
    ) -> tuple[list[_PassRows], dict[str, RequestResult]]:
        """Trees for the requests that decide in this pass; results for those that failed before."""
        failed: dict[str, RequestResult] = {}
        live: list[tuple[PlannedRequest, WorkerRequest]] = []
        for p in planned:
            state = self.requests[p.request_id]
            state.draft.slots, state.draft.num_computed_tokens = p.slots, p.num_computed_tokens
            if self.head is not None:
                self.head.forget(p.slots[p.num_computed_tokens :])
            if state.error is None:
                live.append((p, state))
            else:
                failed[p.request_id] = _failure(p, state.error)
        deciding = [(p, s) for p, s in live if p.is_decision]
        trees: dict[str, DraftTree] = {}
        if self.builder is not None and deciding:
            num_chain_rows = sum(p.num_chain_rows for p, _ in live)
            wanted = [
                TreeRequest(s.draft, p.max_tree_rows, min(p.max_tree_rows, p.max_new_tokens - 1))
                for p, s in deciding
            ]
            trees, errors = self._build_trees(wanted, num_chain_rows)
            failed |= {
                p.request_id: _failure(p, errors[p.request_id])
                for p, _ in deciding
                if p.request_id in errors
            }
        passes = []
        num_logits = 0
        for p, state in live:
            if p.request_id in failed:
                continue
            if not p.is_decision:
                passes.append(_PassRows(p, state, None, {}))
                continue
            root = state.grammar.root if state.grammar is not None else DEAD
            tree = trees.get(p.request_id) or DraftTree(state.draft.token_ids[-1], root)
            try:
                undecided = [
                    node
                    for node in range(len(tree))
                    if self._determined(state, tree.grammar_node[node]) is None
                ]
            except SpecrtError as exc:
                failed[p.request_id] = _failure(p, str(exc))
                continue
            index = {node: num_logits + i for i, node in enumerate(undecided)}
            num_logits += len(undecided)
            passes.append(_PassRows(p, state, tree, index))
        return passes, failed

    def _build_trees(
        self, wanted: list[TreeRequest], num_chain_rows: int
    ) -> tuple[dict[str, DraftTree], dict[str, str]]:
        """Trees by request id; where a grammar fails, its request's error instead."""
        assert self.builder is not None
        ids = [item.request.request_id for item in wanted]
        try:
            built = self.builder.build(wanted, num_base_rows=num_chain_rows)
            return dict(zip(ids, built, strict=True)), {}
        except SpecrtError:
            pass  # one of them is at fault: alone, each fails or drafts for itself
        trees: dict[str, DraftTree] = {}
        errors: dict[str, str] = {}
        for item in wanted:
            try:
                (trees[item.request.request_id],) = self.builder.build([item], num_chain_rows)
            except SpecrtError as exc:
                errors[item.request.request_id] = str(exc)
        return trees, errors

    def _determined(self, state: WorkerRequest, grammar_node: int) -> int | None:
        """The only token that the grammar leaves at a node, if there is only one."""
        if state.grammar is None:
            return None
        forced = state.grammar.forced(grammar_node)
        if forced is not None:
            return forced
        allowed = state.grammar.allowed(grammar_node, 1)
        return allowed[0] if allowed else None

    def _end_token_ids(self, opened: OpenedRequest) -> frozenset[int]:
        """Ids that end this output. Under a grammar the end is the grammar's to allow."""
        ids = frozenset(opened.sampling.stop_token_ids)
        if opened.sampling.ignore_eos and opened.grammar is None:
            return ids
        return ids | self.eos_token_ids

    # ---- the target pass ---------------------------------------------------------------------

    def _forward(self, passes: list[_PassRows]) -> torch.Tensor:
        """One pass over all rows; float32 [number of decision rows, V]."""
        token_ids: list[int] = []
        positions: list[int] = []
        logits_rows: list[int] = []
        groups: list[RowGroup] = []
        for p in passes:
            planned, tree = p.planned, p.tree
            computed, num_chain = planned.num_computed_tokens, planned.num_chain_rows
            first_row = len(token_ids)
            token_ids += p.state.draft.token_ids[computed : computed + num_chain]
            positions += range(computed, computed + num_chain)
            parents: list[int] = []
            if tree is not None:
                root_position = computed + num_chain - 1
                token_ids += tree.token_ids[1:]
                positions += [root_position + depth for depth in tree.depth[1:]]
                parents = [num_chain - 1 + parent for parent in tree.parent[1:]]
                # Node n is row num_chain - 1 + n; the root is the last chain row.
                logits_rows += [first_row + num_chain - 1 + node for node in p.logits_index]
            num_rows = num_chain + len(parents)
            groups.append(
                RowGroup(
                    context_slots=planned.slots[:computed],
                    row_slots=planned.slots[computed : computed + num_rows],
                    num_chain=num_chain,
                    parents=np.asarray(parents, dtype=np.int32),
                )
            )
        if not groups:
            return torch.empty(0, 0)
        self.attention.plan(groups)
        output = self.model.forward(
            torch.tensor(token_ids, dtype=torch.int64, device=self.device),
            torch.tensor(positions, dtype=torch.int64, device=self.device),
            self.attention,
            torch.tensor(logits_rows, dtype=torch.int64, device=self.device),
            self.head.capture_layers if self.head is not None else (),
        )
        if self.head is not None:
            assert output.captured is not None
            slots = np.concatenate([group.row_slots for group in groups])
            self.head.keep_features(slots, output.captured)
        return output.logits

    # ---- accept ------------------------------------------------------------------------------

    def _accept(self, rows: _PassRows, logits: torch.Tensor) -> RequestResult:
        """Walk the tree, keep what the target drew, move the kept rows behind the chain."""
        planned, state, tree = rows.planned, rows.state, rows.tree
        num_computed = planned.num_computed_tokens + planned.num_chain_rows
        if tree is None:
            return RequestResult(request_id=planned.request_id, num_computed_tokens=num_computed)
        try:
            walk = self._walk(rows, logits)
            new_token_ids, nodes = walk.token_ids, walk.nodes
            if state.grammar is not None and not walk.is_stopped:
                state.grammar.commit(walk.grammar_node)
        except SpecrtError as exc:
            logger.warning("%s: %s", planned.request_id, exc)
            return _failure(planned, str(exc))
        scratch = planned.slots[num_computed:]
        sources = np.asarray([scratch[node - 1] for node in nodes], dtype=np.int32)
        targets = scratch[: len(nodes)]
        if not np.array_equal(sources, targets):
            self.store.move(sources, targets)
        if self.on_verified is not None:
            self.on_verified(planned.request_id, tree, nodes, new_token_ids)
        if self.builder is not None:
            self.builder.extend(state.draft, new_token_ids)
        else:
            state.draft.token_ids.extend(new_token_ids)
        return RequestResult(
            request_id=planned.request_id,
            num_computed_tokens=num_computed + len(nodes),
            new_token_ids=new_token_ids,
            logprobs=walk.logprobs,
            is_stopped=walk.is_stopped,
            drafts=tree_stats(tree, nodes, len(new_token_ids), walk.num_invalid),
        )

    def _walk(self, rows: _PassRows, logits: torch.Tensor) -> _Walk:
        """Draw from the root down until the drawn token is no child, or ends the output."""
        state, tree = rows.state, rows.tree
        assert tree is not None
        sampling, grammar = state.sampling, state.grammar
        walk = _Walk([], [] if sampling.logprobs is not None else None)
        node, grammar_node = 0, tree.grammar_node[0]
        position = len(state.draft.token_ids)
        while True:
            if node in rows.logits_index:
                bitmask = self._mask(state, grammar_node, position)
                walk.num_invalid += _num_forbidden(tree, node, bitmask)
                draw = sample(
                    logits[rows.logits_index[node]], sampling, state.history, bitmask, position
                )
                token_id = draw.token_id
                logprob = TokenLogprob(token_id, draw.logprob or 0.0, draw.top)
            else:
                determined = self._determined(state, grammar_node)
                assert determined is not None, "a node without logits has one token"
                token_id = determined
                top = ((token_id, 0.0),) if sampling.logprobs else ()
                logprob = TokenLogprob(token_id, 0.0, top)
            index = position - state.draft.num_prompt_tokens
            if index < len(sampling.continuation):
                token_id = sampling.continuation[index]
                self._check_allowed(state, grammar_node, token_id, index)
            walk.token_ids.append(token_id)
            if walk.logprobs is not None:
                walk.logprobs.append(logprob)
            state.history.push(token_id)
            position += 1
            child = tree.child(node, token_id)
            if child is not None:
                walk.nodes.append(child)
            if token_id in state.draft.end_token_ids:
                walk.is_stopped = True
                return walk
            if grammar is not None:
                if child is not None:
                    grammar_node = tree.grammar_node[child]
                else:
                    grammar_node = grammar.advance(grammar_node, token_id)
            if child is None or len(walk.token_ids) == rows.planned.max_new_tokens:
                walk.grammar_node = grammar_node
                return walk
            node = child

    def _check_allowed(
        self, state: WorkerRequest, grammar_node: int, token_id: int, index: int
    ) -> None:
        """A continuation comes from outside: it may be one that the grammar forbids."""
        if state.grammar is None:
            return
        state.grammar.masks([grammar_node], self._bitmask)
        words = self._bitmask[0].view(np.uint32)
        if not int(words[token_id // 32]) >> token_id % 32 & 1:
            raise RequestError(
                f"sampling.continuation[{index}]: the grammar forbids the token {token_id} there"
            )

    def _mask(
        self, state: WorkerRequest, grammar_node: int, position: int
    ) -> npt.NDArray[np.int32] | None:
        """The tokens that may stand at a position; None = all. Valid until the next call."""
        mask: npt.NDArray[np.int32] = self._bitmask[0]
        is_early = position - state.draft.num_prompt_tokens < state.sampling.min_tokens
        if state.grammar is None and not is_early:
            return None
        if state.grammar is not None:
            state.grammar.masks([grammar_node], self._bitmask)
        else:
            mask.fill(-1)
        if is_early:
            longer: npt.NDArray[np.int32] = mask.copy()
            words = longer.view(np.uint32)
            for token_id in state.draft.end_token_ids:
                words[token_id // 32] &= np.uint32(_WORD ^ (1 << token_id % 32))
            if longer.any():  # otherwise the grammar ends here
                return longer
        return mask


def _num_tree_rows(tree: DraftTree | None) -> int:
    return len(tree) - 1 if tree is not None else 0


def _num_forbidden(tree: DraftTree, node: int, bitmask: npt.NDArray[np.int32] | None) -> int:
    """Children of a node that its mask does not allow."""
    if bitmask is None:
        return 0
    words = bitmask.view(np.uint32)
    children = (tree.token_ids[child] for child in tree.children(node))
    return sum(not int(words[token_id // 32]) >> token_id % 32 & 1 for token_id in children)


def _failure(planned: PlannedRequest, error: str) -> RequestResult:
    return RequestResult(
        request_id=planned.request_id,
        num_computed_tokens=planned.num_computed_tokens,
        error=error,
    )
