"""The engine in this process, as the in-process benchmarks see it: cases in, token ids out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from specrt.bench.traces import Trace
from specrt.config import CacheConfig, EngineConfig, GrammarConfig, ModelConfig, SpeculativeConfig
from specrt.errors import EngineError, RequestError
from specrt.request import EngineRequest, RequestStats, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class Case:
    """One request made from a recorded conversation, without its sampling.

    Attributes:
        name: trace id and message index.
        request: prompt and grammar; `sampling` is a placeholder.
        tools: the OpenAI tools, to judge the calls with.
        source: data set of the conversation.
    """

    name: str
    request: EngineRequest
    tools: list[dict[str, Any]]
    source: str = ""

    def sampled(self, sampling: SamplingParams) -> EngineRequest:
        """The request with these sampling parameters."""
        return replace(self.request, sampling=sampling)


@dataclass(slots=True)
class Generation:
    """One finished output.

    Attributes:
        token_ids: all output tokens, the one that ended it included.
        text: their text without the end token's.
        finish_reason: stop, length or error.
        error: message when finish_reason is "error".
        stats: the engine's counts.
        logprobs: one per token when asked for.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    error: str | None
    stats: RequestStats
    logprobs: list[TokenLogprob]


class Generator(Protocol):
    """What the benchmarks need of an engine."""

    vocab_size: int

    def generate(self, requests: Sequence[EngineRequest], batch_size: int) -> list[Generation]:
        """Run requests, up to `batch_size` at once; results in the order of the requests."""
        ...

    def calls(self, text: str) -> list[dict[str, Any]]:
        """The calls in an output, in wire form."""
        ...

    def unenforced(self, request: EngineRequest) -> list[dict[str, str]]:
        """`tool` and `pointer` of what the request's grammar does not enforce."""
        ...

    def leak(self) -> str | None:
        """Which slots someone still holds though nothing runs; None = none."""
        ...


class EngineGenerator:
    """An `LLMEngine` as a `Generator`."""

    def __init__(self, config: EngineConfig) -> None:
        from specrt.engine import LLMEngine
        from specrt.grammars.format_detection import find_format
        from specrt.grammars.prompt_builder import make_prompt_builder

        self.engine = LLMEngine(config)
        self.vocab_size = self.engine.worker.model.config.vocab_size
        self._ids = itertools.count()
        parser = config.grammar.tool_call_parser
        self.tool_format = find_format(self.engine.tokenizer, parser)
        self._prompts = make_prompt_builder(
            self.engine.tokenizer, self.tool_format, is_chosen=parser is not None
        )

    def cases(self, traces: list[Trace], limit: int, max_prompt_tokens: int) -> list[Case]:
        """Make up to `limit` cases, one assistant turn of each trace at a time.

        Turns that called must call; every fourth of those may. What the engine refuses (a prompt
        that is too long, a schema that is none) is left out.
        """
        cases: list[Case] = []
        turns = [
            [i for i, message in enumerate(trace.messages) if message["role"] == "assistant"]
            for trace in traces
        ]
        for depth in range(max((len(positions) for positions in turns), default=0)):
            for trace, positions in zip(traces, turns, strict=True):
                if len(cases) == limit:
                    return cases
                if depth < len(positions):
                    must_call = bool(trace.messages[positions[depth]].get("tool_calls"))
                    must_call = must_call and len(cases) % 4 != 3
                    case = self.case(trace, positions[depth], must_call)
                    if case and len(case.request.prompt_token_ids) <= max_prompt_tokens:
                        cases.append(case)
        return cases

    def case(self, trace: Trace, position: int, must_call: bool) -> Case | None:
        """The reply to `trace.messages[:position]`; None when the engine refuses to write it."""
        from specrt.grammars.recipes import build_recipe

        choice = None if not trace.tools else "required" if must_call else "auto"
        try:
            prompt = self._prompts.build(trace.messages[:position], trace.tools)
            recipe = build_recipe(
                trace.tools, tool_choice=choice, tool_format=self.tool_format.name
            )
            if recipe is not None:
                self.engine.worker.compiler.compile(recipe)
        except RequestError:
            return None
        request = EngineRequest(
            request_id="",
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(max_tokens=1),
            grammar=recipe,
        )
        return Case(f"{trace.trace_id}[{position}]", request, trace.tools, trace.source)

    def generate(self, requests: Sequence[EngineRequest], batch_size: int) -> list[Generation]:
        """See `Generator`.

        Raises:
            EngineError: a request stopped making progress.
        """
        waiting = [replace(r, request_id=f"bench-{next(self._ids)}") for r in requests]
        order = [request.request_id for request in waiting]
        live: dict[str, Generation] = {}
        done: dict[str, Generation] = {}
        waiting.reverse()
        while waiting or live:
            while waiting and len(live) < batch_size:
                request = waiting.pop()
                live[request.request_id] = Generation([], "", "", None, RequestStats(), [])
                self.engine.add(request)
            if not self.engine.has_work:
                raise EngineError(f"the engine lost {len(live)} requests")
            for output in self.engine.step():
                generation = live[output.request_id]
                generation.token_ids += output.token_ids
                generation.text += output.text
                generation.logprobs += output.logprobs or []
                generation.stats = output.stats
                if output.finish_reason is not None:
                    generation.finish_reason = output.finish_reason
                    generation.error = output.error
                    done[output.request_id] = live.pop(output.request_id)
        return [done[request_id] for request_id in order]

    def calls(self, text: str) -> list[dict[str, Any]]:
        """See `Generator`."""
        from specrt.grammars.tool_parser import parse_message

        message = parse_message(self.tool_format, text)
        return [
            {"function": {"name": call.name, "arguments": call.arguments}} for call in message.calls
        ]

    def unenforced(self, request: EngineRequest) -> list[dict[str, str]]:
        """See `Generator`."""
        if request.grammar is None:
            return []
        grammar = self.engine.worker.compiler.compile(request.grammar)
        return [{"tool": entry.tool, "pointer": entry.pointer} for entry in grammar.unenforced]

    def leak(self) -> str | None:
        """See `Generator`."""
        slots = self.engine.cache.stats()
        owned = slots.num_free + slots.num_cached + slots.num_held
        if owned == slots.num_total and slots.num_held == 0 and slots.num_locked == 0:
            return None
        return (
            f"{slots.num_free} free + {slots.num_cached} cached + {slots.num_held} held of"
            f" {slots.num_total}, {slots.num_locked} locked"
        )


def engine_config(
    model_path: str | None,
    draft_sources: str,
    *,
    num_threads: int | None,
    max_total_tokens: int,
    draft_model_path: str | None = None,
    check_cache: bool = False,
    grammar_backend: Literal["auto", "outlines", "llguidance"] = "auto",
) -> EngineConfig:
    """An engine with these draft sources, `eagle` (a head) among them; "" is plain decoding."""
    names = [name for name in draft_sources.split(",") if name]
    others = [name for name in names if name != "eagle"]
    kind: Literal["eagle", "grammar", "none"] = (
        "eagle" if others != names else "grammar" if names else "none"
    )
    speculative = SpeculativeConfig(
        speculative=kind,
        speculative_draft_model_path=draft_model_path,
        draft_sources=",".join(others),
    )
    return EngineConfig(
        model=ModelConfig(model_path=model_path, num_threads=num_threads),
        cache=CacheConfig(max_total_tokens=max_total_tokens, check_cache=check_cache),
        speculative=speculative,
        grammar=GrammarConfig(grammar_backend=grammar_backend),
    )
