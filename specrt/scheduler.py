"""The scheduler: who runs in the next pass, with which rows and slots.

One law covers prefill, chunked prefill, decode and verify: `num_computed_tokens` catches up with
prompt + output, and draft rows ride behind the last known token. The scheduler sees ints only: no
tensor, no text, no grammar.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specrt.cache.manager import CacheManager, SequenceCache
from specrt.config import SchedulerConfig
from specrt.errors import ContextLengthError, RequestError
from specrt.plan import OpenedRequest, PlannedRequest, RequestResult, StepPlan, StepResult
from specrt.request import DraftStats, EngineRequest, RequestStats

# Waiting for another request to compute a shared prefix costs a pass; below this many shared
# uncached tokens it is quicker to compute them again.
MIN_SHARED_TOKENS = 16
# Longest-prefix order looks every waiting request up in the tree; beyond this queue length the
# look-ups would cost more than the order saves.
MAX_LPM_QUEUE = 128


@dataclass(slots=True)
class ScheduledRequest:
    """A request between admission and its last token.

    Attributes:
        request: as it came.
        token_ids: prompt and output so far.
        num_computed_tokens: tokens whose KV is in the pool.
        sequence: its slots; None while it waits.
        stats: counts so far.
        is_finished: no more passes; its slots are back.
        passed_over: how often a later request was admitted before this one.
    """

    request: EngineRequest
    token_ids: list[int]
    num_computed_tokens: int = 0
    sequence: SequenceCache | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    is_finished: bool = False
    passed_over: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens without KV; 1 in plain decoding, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_new_tokens(self) -> int:
        """Output tokens it may still emit."""
        return self.request.sampling.max_tokens - self.num_output_tokens


class Scheduler:
    """Plans passes over the requests it holds and keeps their slots."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheManager,
        *,
        context_length: int,
        max_tree_rows: int,
    ) -> None:
        """Args:
        config: policy and limits.
        cache: owner of all slots.
        context_length: tokens of prompt + output at most.
        max_tree_rows: draft rows of one request in one pass; 0 = no speculation.
        """
        self.config = config
        self.cache = cache
        self.context_length = context_length
        self.max_tree_rows = max_tree_rows
        self.waiting: deque[ScheduledRequest] = deque()
        self.running: list[ScheduledRequest] = []
        self._by_id: dict[str, ScheduledRequest] = {}
        self._opened: list[str] = []  # admitted since the last plan
        self._closed: list[str] = []  # finished or retracted since the last plan
        self._step_ids = itertools.count(1)
        self.num_retractions = 0

    # ---- requests in and out ---------------------------------------------------------------

    def add(self, request: EngineRequest) -> ScheduledRequest:
        """Queue a request.

        Raises:
            ContextLengthError: it can never fit; the message has the numbers.
            RequestError: its id is in flight.
        """
        if request.request_id in self._by_id:
            raise RequestError(f"request id {request.request_id!r} is already in flight")
        num_prompt, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
        wanted = num_prompt + max_tokens
        if wanted > self.context_length:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}: together"
                f" {wanted}, but the context holds {self.context_length}; shorten the prompt or"
                " lower max_tokens"
            )
        # The last output token never gets a slot: nothing is computed after it.
        if not self.cache.can_ever_fit(wanted - 1):
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}: together"
                f" {wanted}, but the KV cache holds {self.cache.stats().num_total} tokens; shorten"
                " the prompt, lower max_tokens or start the server with a larger"
                " --max-total-tokens"
            )
        entry = ScheduledRequest(
            request,
            list(request.prompt_token_ids),
            stats=RequestStats(num_prompt_tokens=num_prompt),
        )
        self._by_id[request.request_id] = entry
        self.waiting.append(entry)
        return entry

    def get(self, request_id: str) -> ScheduledRequest | None:
        """The unfinished request of this id."""
        return self._by_id.get(request_id)

    @property
    def has_work(self) -> bool:
        """Is any request unfinished?"""
        return bool(self._by_id)

    def finish(self, entry: ScheduledRequest, num_tokens: int | None = None) -> None:
        """Take a request out in this step: keep its computed prefix, free the rest of its slots.

        Args:
            entry: an unfinished request.
            num_tokens: prompt and output tokens that count (a stop may have cut some); None = all.
        """
        entry.is_finished = True
        if num_tokens is not None:
            del entry.token_ids[num_tokens:]
        self._release(entry)
        if entry in self.waiting:
            self.waiting.remove(entry)
        del self._by_id[entry.request.request_id]

    def _release(self, entry: ScheduledRequest) -> None:
        if entry.sequence is None:
            return
        computed = min(entry.num_computed_tokens, len(entry.token_ids))
        self.cache.close(entry.sequence, entry.token_ids, computed)
        entry.sequence = None
        self.running.remove(entry)
        request_id = entry.request.request_id
        if request_id in self._opened:
            self._opened.remove(request_id)  # the worker never heard of it
        else:
            self._closed.append(request_id)

    # ---- one pass ---------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next pass, or None when nothing can run.

        Running requests come first (those that decide before those in prefill), then waiting ones
        are admitted while rows and slots last. Rows of the chains share one budget; how many draft
        rows are worth their time is decided where the drafts are made.
        """
        planned: list[PlannedRequest] = []
        num_rows_left = self.config.chunked_prefill_size
        for entry in sorted(self.running, key=lambda e: e.num_uncomputed_tokens > 1):
            if entry.sequence is None or num_rows_left == 0:
                continue  # retracted for an earlier one, or no rows left: it runs next time
            num_chain = min(entry.num_uncomputed_tokens, num_rows_left)
            if not self._make_room(entry, num_chain, planned):
                continue
            planned.append(self._plan(entry, num_chain))
            num_rows_left -= num_chain
        for entry in self._admission_order():
            if num_rows_left == 0 or len(self.running) >= self.config.max_running_requests:
                break
            if self._waits_for_shared_prefix(entry):
                continue
            if not self._admit(entry):
                break
            num_chain = min(entry.num_uncomputed_tokens, num_rows_left)
            planned.append(self._plan(entry, num_chain))
            num_rows_left -= num_chain
        if not planned and not self._closed:
            return None
        opened = tuple(self._describe(self._by_id[request_id]) for request_id in self._opened)
        plan = StepPlan(
            step_id=next(self._step_ids),
            opened=opened,
            closed=tuple(self._closed),
            requests=tuple(planned),
        )
        self._opened.clear()
        self._closed.clear()
        return plan

    def commit(self, result: StepResult) -> list[tuple[ScheduledRequest, RequestResult]]:
        """Take in what a pass did; the caller finishes those that end here."""
        done = []
        times = DraftStats(
            draft_s=result.draft_s, verify_s=result.forward_s, accept_s=result.accept_s
        )
        for row in result.requests:
            entry = self._by_id.get(row.request_id)
            if entry is None or entry.sequence is None:
                continue
            was_prefill = entry.num_uncomputed_tokens > 1
            entry.num_computed_tokens = row.num_computed_tokens
            entry.token_ids.extend(row.new_token_ids)
            stats = entry.stats
            stats.num_output_tokens = entry.num_output_tokens
            stats.num_passes += bool(row.new_token_ids)
            stats.drafts.add(row.drafts)
            if row.new_token_ids:
                stats.drafts.add(times)
            if was_prefill:
                self.cache.publish(entry.sequence, entry.token_ids, entry.num_computed_tokens)
            done.append((entry, row))
        return done

    # ---- slots ------------------------------------------------------------------------------

    def _num_tree_rows(self, entry: ScheduledRequest, num_chain: int) -> int:
        if num_chain < entry.num_uncomputed_tokens:
            return 0
        return max(0, min(self.max_tree_rows, entry.max_new_tokens - 1))

    def _make_room(
        self, entry: ScheduledRequest, num_chain: int, planned: list[PlannedRequest]
    ) -> bool:
        """Grow a running request for its next rows, retracting later ones if need be."""
        assert entry.sequence is not None
        needed = entry.num_computed_tokens + num_chain
        tree_rows = self._num_tree_rows(entry, num_chain)
        while True:
            if self.cache.grow(entry.sequence, needed + tree_rows):
                return True
            if self.cache.grow(entry.sequence, needed):
                return True  # room for the chain, and for as much of a tree as the table has
            in_plan = {p.request_id for p in planned}
            victims = [
                e for e in self.running if e is not entry and e.request.request_id not in in_plan
            ]
            if self._shrink(victims) and self.cache.grow(entry.sequence, needed):
                return True
            if not victims:
                if planned:
                    return False  # those in the plan finish or are retracted first
                raise AssertionError("a request that fits alone found no slots")
            self._retract(victims[-1])

    def _shrink(self, entries: list[ScheduledRequest]) -> bool:
        """Give back the headroom of requests that are not in the plan; True when there was any."""
        freed = False
        for entry in entries:
            assert entry.sequence is not None
            if len(entry.sequence.page_table) > entry.num_computed_tokens:
                self.cache.shrink(entry.sequence, entry.num_computed_tokens)
                freed = True
        return freed

    def _retract(self, entry: ScheduledRequest) -> None:
        """Send a running request back to the queue's front; what it computed may stay cached."""
        self._release(entry)
        entry.num_computed_tokens = 0
        entry.stats.num_retractions += 1
        self.num_retractions += 1
        self.waiting.appendleft(entry)

    def _plan(self, entry: ScheduledRequest, num_chain: int) -> PlannedRequest:
        assert entry.sequence is not None
        computed = entry.num_computed_tokens
        table = entry.sequence.page_table
        room = len(table) - computed - num_chain
        tree_rows = min(self._num_tree_rows(entry, num_chain), room)
        return PlannedRequest(
            request_id=entry.request.request_id,
            num_computed_tokens=computed,
            num_chain_rows=num_chain,
            slots=table[: computed + num_chain + tree_rows],
            max_tree_rows=tree_rows,
            is_decision=num_chain == entry.num_uncomputed_tokens,
            max_new_tokens=entry.max_new_tokens,
        )

    def _describe(self, entry: ScheduledRequest) -> OpenedRequest:
        request = entry.request
        return OpenedRequest(
            request_id=request.request_id,
            token_ids=list(entry.token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            sampling=request.sampling,
            grammar=request.grammar,
            history_key=request.history_key,
        )

    # ---- admission --------------------------------------------------------------------------

    def _admission_order(self) -> list[ScheduledRequest]:
        """Waiting requests, best first.

        Retracted ones, then those passed over too often, then by the policy.
        """
        queue = list(self.waiting)
        if self.config.schedule_policy == "fcfs" or not 1 < len(queue) <= MAX_LPM_QUEUE:
            return queue

        def rank(item: tuple[int, ScheduledRequest]) -> tuple[int, int, int]:
            index, entry = item
            if entry.stats.num_retractions:
                return (0, 0, index)
            if entry.passed_over >= self.config.max_wait_admissions:
                return (1, 0, index)
            match = self.cache.match_length(entry.request.namespace, entry.token_ids)
            return (2, -match, index)

        return [entry for _, entry in sorted(enumerate(queue), key=rank)]

    def _waits_for_shared_prefix(self, entry: ScheduledRequest) -> bool:
        """Is a running request computing a prefix that this one would compute again?"""
        namespace = entry.request.namespace
        candidates = [
            r
            for r in self.running
            if r.request.namespace == namespace and r.num_uncomputed_tokens > 1
        ]
        if not candidates:
            return False
        own = np.asarray(entry.token_ids[:-1], dtype=np.int64)
        cached = self.cache.match_length(namespace, entry.token_ids)
        for other in candidates:
            shared = _common_prefix(own, np.asarray(other.token_ids, dtype=np.int64))
            gain = shared - max(cached, other.num_computed_tokens)
            if gain >= MIN_SHARED_TOKENS or (gain > 0 and shared == len(own)):
                return True
        return False

    def _admit(self, entry: ScheduledRequest) -> bool:
        """Open a waiting request with slots for all its known tokens; False when they lack."""
        sequence = self.cache.open(entry.request.namespace, entry.token_ids)
        num_tokens = len(entry.token_ids)
        wanted = num_tokens + self._num_tree_rows(entry, num_tokens)
        if not (self.cache.grow(sequence, wanted) or self.cache.grow(sequence, num_tokens)):
            self.cache.close(sequence, entry.token_ids, sequence.num_cached_tokens)
            if not self.running:
                raise AssertionError("a request that fits alone found no slots")
            return False
        for other in self.waiting:
            if other is entry:
                break
            other.passed_over += 1
        self.waiting.remove(entry)
        entry.sequence = sequence
        entry.num_computed_tokens = sequence.num_cached_tokens
        if entry.stats.num_retractions == 0:
            entry.stats.num_cached_tokens = sequence.num_cached_tokens
        self.running.append(entry)
        self._opened.append(entry.request.request_id)
        return True


def _common_prefix(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> int:
    """Number of equal leading tokens."""
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size
