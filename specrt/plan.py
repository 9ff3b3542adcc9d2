"""StepPlan and StepResult: all that passes between the scheduler and the worker.

Plain data: no request object, no engine reference, no logits. So a worker can be a process, a
tensor-parallel group or a captured graph, and a plan can be made before the last result is in.

A request's rows in one pass are a chain of uncomputed tokens, then an optional draft tree whose
root is the last chain row:

    slots index  [0, num_computed)                       KV already in the pool
                 [num_computed, num_computed + chain)    the chain rows of this pass
                 [num_computed + chain, len(slots))      scratch: one tree row each, in row order

After the walk the accepted tree rows are moved down to follow the chain; the rest of the scratch
holds nothing that anyone may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specrt.grammars.base import GrammarRecipe
from specrt.request import DraftStats, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRequest:
    """What the worker must know to open its state for a request (again, after a retraction).

    Attributes:
        request_id: the request.
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
        sampling: how tokens are drawn.
        grammar: recipe to compile (or find compiled).
        history_key: see `EngineRequest.history_key`.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    grammar: GrammarRecipe | None
    history_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request's share of a pass.

    Attributes:
        request_id: an opened request.
        num_computed_tokens: tokens whose KV is in the pool.
        num_chain_rows: known tokens to compute now (>= 1), from num_computed_tokens on.
        slots: int32 [num_computed_tokens + num_chain_rows + max_tree_rows]; see the module text.
        max_tree_rows: draft rows at most; 0 = none.
        is_decision: the chain reaches the last known token: draft, and draw the next ones.
        max_new_tokens: output tokens this request may still emit (>= 1).
    """

    request_id: str
    num_computed_tokens: int
    num_chain_rows: int
    slots: npt.NDArray[np.int32]
    max_tree_rows: int
    is_decision: bool
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One pass. `closed` ids are dropped first, then `opened` are added, then `requests` run."""

    step_id: int
    opened: tuple[OpenedRequest, ...] = ()
    closed: tuple[str, ...] = ()
    requests: tuple[PlannedRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """What one pass did for a request.

    Attributes:
        request_id: the request.
        num_computed_tokens: tokens whose KV is in the pool now (the last new token's is not).
        new_token_ids: output tokens drawn: accepted draft tokens, then the bonus token.
        logprobs: one per new token when asked for.
        is_stopped: the last new token is an end-of-sequence or stop token.
        error: the request cannot go on (its grammar failed, say); others are unaffected.
        drafts: what drafting did, but for the times.
    """

    request_id: str
    num_computed_tokens: int
    new_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    is_stopped: bool = False
    error: str | None = None
    drafts: DraftStats = field(default_factory=DraftStats)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Results in the order of the plan, and where the time went (seconds)."""

    step_id: int
    requests: tuple[RequestResult, ...]
    num_rows: int = 0
    draft_s: float = 0.0
    forward_s: float = 0.0
    accept_s: float = 0.0
