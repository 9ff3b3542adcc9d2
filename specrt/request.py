"""What one generation is made of: sampling parameters in, outputs out.

Plain data without torch. Dataclasses here cross the process boundary (msgspec encodes them).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from specrt.grammars.base import GrammarRecipe

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Values are validated at the public edge (server, LLM).

    Attributes:
        max_tokens: output tokens at most (>= 1).
        temperature: 0 is plain argmax.
        top_p: smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: number of most likely tokens kept; 0 keeps all.
        min_p: tokens below this share of the best token's probability are dropped; 0 keeps all.
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens seen in
            prompt or output; 1 is off.
        presence_penalty: subtracted once from the logit of each token seen in the output.
        frequency_penalty: subtracted per occurrence in the output.
        logit_bias: token id -> added to its logit.
        stop: strings that end the output; the text is cut before them.
        stop_token_ids: extra token ids that end the output.
        include_stop: the text is cut behind the stop string that ended it, not before.
        min_tokens: nothing ends the output before it has this many tokens, the one that ends it
            not counted; a grammar that leaves no other token still does.
        ignore_eos: go on after an end-of-sequence token (without a grammar only).
        seed: noise seed, 64 bits; resolved at admission, kept through retraction.
        choice_index: which of the n choices this is; part of the noise counter.
        logprobs: None = none; k >= 0 = the chosen token's logprob and the k best alternatives.
        continuation: tokens that take the place of the first drawn ones. All else (drafts, the
            pass, the walk) goes on as it would: so a recorded output shows how it is drafted.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int = 0
    choice_index: int = 0
    logprobs: int | None = None
    continuation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One generation as the engine takes it: n choices are n of these.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: at least one id.
        sampling: how tokens are drawn.
        grammar: what the output must look like; None = free text.
        namespace: cache namespace (model, head, KV dtype, cache salt): only equal ones share KV.
        tenant: who asks; drafts look into earlier outputs of the same tenant only.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    grammar: GrammarRecipe | None = None
    namespace: str = ""
    tenant: str = ""

    @property
    def history_key(self) -> str:
        """Equal for requests that may draft from each other's outputs; "" = it has no tools."""
        if self.grammar is None or not self.grammar.tools:
            return ""
        tools = [(tool.name, tool.parameters) for tool in self.grammar.tools]
        key = json.dumps([self.namespace, self.tenant, self.grammar.tool_format, tools])
        return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one output token.

    Log-softmax after bias, penalties and grammar mask, before temperature and truncation.

    Attributes:
        token_id: the emitted token.
        logprob: its log-probability; 0 for a forced token.
        top: (token id, logprob) of the best alternatives, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


# Draft source -> region of the output -> tokens.
Counts = dict[str, dict[str, int]]


@dataclass(slots=True)
class DraftStats:
    """What drafting did: in one pass, for one request, or since an engine's start.

    Attributes:
        drafted: draft tokens verified.
        accepted: draft tokens kept.
        num_invalid: draft tokens that the grammar forbids, of those that the target decided about;
            a drafter at fault, so 0.
        tokens_of_passes: tokens that a pass committed for a request -> passes.
        draft_s: seconds of drafting; of a request, all of the passes that it shared.
        verify_s: seconds in the target model, likewise.
        accept_s: seconds of drawing and accepting tokens, likewise.
    """

    drafted: Counts = field(default_factory=dict)
    accepted: Counts = field(default_factory=dict)
    num_invalid: int = 0
    tokens_of_passes: dict[int, int] = field(default_factory=dict)
    draft_s: float = 0.0
    verify_s: float = 0.0
    accept_s: float = 0.0

    def add(self, other: DraftStats) -> None:
        """Add what another pass or request did."""
        for mine, theirs in ((self.drafted, other.drafted), (self.accepted, other.accepted)):
            for source, by_region in theirs.items():
                counts = mine.setdefault(source, {})
                for region, count in by_region.items():
                    counts[region] = counts.get(region, 0) + count
        for num_tokens, passes in other.tokens_of_passes.items():
            before = self.tokens_of_passes.get(num_tokens, 0)
            self.tokens_of_passes[num_tokens] = before + passes
        self.num_invalid += other.num_invalid
        self.draft_s += other.draft_s
        self.verify_s += other.verify_s
        self.accept_s += other.accept_s

    def copy(self) -> DraftStats:
        """A snapshot."""
        snapshot = DraftStats()
        snapshot.add(self)
        return snapshot


def by_source(counts: Counts) -> dict[str, int]:
    """Tokens by draft source, wherever they stand."""
    return {source: sum(by_region.values()) for source, by_region in counts.items()}


@dataclass(slots=True)
class RequestStats:
    """Counts over one request's life so far.

    Attributes:
        num_prompt_tokens: length of the prompt.
        num_cached_tokens: prompt tokens taken from the radix cache at first admission.
        num_output_tokens: tokens emitted, the end-of-sequence token included.
        num_passes: target passes that produced at least one output token.
        drafts: what drafting did.
        num_retractions: times the request gave its slots back and was resumed.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_passes: int = 0
    drafts: DraftStats = field(default_factory=DraftStats)
    num_retractions: int = 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens committed per verify pass, bonus included."""
        return self.num_output_tokens / self.num_passes if self.num_passes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What one engine step added to a request.

    Attributes:
        request_id: the request.
        token_ids: new output tokens of this step.
        text: new text; never ends inside a character, never holds part of a matched stop string.
        logprobs: one per new token when asked for.
        finish_reason: None while running.
        error: message when finish_reason is "error".
        stats: counts so far (a snapshot).
        stop_cut: True when a stop string or a stop token ended the output, wherever it was: the
            last token ids may then reach beyond the text.
    """

    request_id: str
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    stats: RequestStats
    stop_cut: bool = False
