"""The engine requests behind one HTTP request: run together, counted together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from openai.types import CompletionUsage
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from specrt.errors import EngineError
from specrt.grammars.base import Unenforced
from specrt.request import DraftStats, EngineRequest, RequestOutput, RequestStats, by_source
from specrt.server.access import RequestRecord
from specrt.server.admission import Admission
from specrt.server.errors import AbortedError, RequestTimeoutError
from specrt.server.metrics import ServerMetrics
from specrt.server.protocol import Report, UnenforcedEntry, ViolationEntry

_T = TypeVar("_T")


class Engine(Protocol):
    """What the server needs of an engine; `specrt.async_engine.AsyncEngine` is the real one."""

    info: dict[str, object]
    is_healthy: bool

    async def start(self) -> None:
        """Start it and wait until it serves."""
        ...

    async def stop(self) -> None:
        """End it; what is in flight fails."""
        ...

    async def until_down(self) -> None:
        """Wait until it has died for good; raises EngineError then."""
        ...

    def generate(
        self, request: EngineRequest, on_start: Callable[[float], None]
    ) -> AsyncIterator[RequestOutput]:
        """Run a request; closing the iterator aborts it within a step.

        `on_start` is called when it leaves the engine's queue, with its time there (seconds).
        """
        ...

    async def stats(self) -> dict[str, object]:
        """Counters and gauges as plain JSON."""
        ...

    async def flush_cache(self) -> bool:
        """Forget every cached prefix; False when requests run."""
        ...


def num_slots(engine: Engine) -> int | None:
    """Tokens that the engine's cache holds; None while it has not said."""
    value = engine.info.get("num_total_slots")
    return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What every generation runs on.

    Attributes:
        engine: generates.
        metrics: count.
        admission: bounds how many.
        timeout_s: longest time of one HTTP request since its arrival (seconds); None = any.
        running: what is in the engine now.
    """

    engine: Engine
    metrics: ServerMetrics
    admission: Admission
    timeout_s: float | None = None
    running: set[Generation] = field(default_factory=set)

    def abort(self, request_id: str | None) -> int:
        """End what runs for a request, or everything; returns the number of requests ended.

        Args:
            request_id: of its X-Request-Id header, or of its response; None = all requests.
        """
        found = [
            generation
            for generation in self.running
            if request_id is None
            or request_id in (generation.record.request_id, generation.record.generation_id)
        ]
        for generation in found:
            generation.abort()
        return len(found)


class Generation:
    """Several engine requests as one stream of outputs.

    Attributes:
        record: gets the counts as they come.
    """

    def __init__(
        self,
        backend: Backend,
        record: RequestRecord,
        requests: Sequence[EngineRequest],
        *,
        n: int = 1,
    ) -> None:
        """Args: `requests` are n choices of the first prompt, then n of the next, and so on."""
        self.record = record
        self._n = n
        self._backend = backend
        self._requests = requests
        self._queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    def abort(self) -> None:
        """Let `outputs` raise AbortedError."""
        self._queue.put_nowait((0, AbortedError()))

    @property
    def num_choices(self) -> int:
        """Number of engine requests."""
        return len(self._requests)

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Outputs as (choice, output) in the order of arrival; closing it aborts all choices.

        Raises:
            OverloadedError: the queue is full; nothing reached the engine.
            RequestError: the engine did not take a request; the others are aborted.
            RequestTimeoutError: the time is up; all are aborted.
            AbortedError: all were aborted.
            EngineError: the engine failed.
        """
        running = self._backend.running
        with self._backend.admission.choices(len(self._requests)):
            running.add(self)
            try:
                async with aclosing(self._run()) as outputs:
                    async for output in outputs:
                        yield output
            finally:
                running.discard(self)

    async def _run(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        tasks = [
            asyncio.create_task(self._pump(choice, request))
            for choice, request in enumerate(self._requests)
        ]
        last_s = [self.record.started] * len(tasks)
        try:
            num_running = len(tasks)
            while num_running:
                choice, item = await self._in_time(self._queue.get())
                if item is None:
                    num_running -= 1
                    continue
                if isinstance(item, Exception):
                    raise item
                now_s = time.perf_counter()
                is_first = choice not in self.record.choices
                self._backend.metrics.observe_output(item, now_s - last_s[choice], is_first)
                last_s[choice] = now_s
                self.record.choices[choice] = item.stats
                yield choice, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_time(self, work: Coroutine[object, object, _T]) -> _T:
        limit_s = self._backend.timeout_s
        if limit_s is None:
            return await work
        left_s = self.record.started + limit_s - time.perf_counter()
        try:
            return await asyncio.wait_for(work, max(left_s, 0.0))
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                f"the request took longer than {limit_s:g} s (--request-timeout) and was aborted;"
                " ask for fewer tokens"
            ) from None

    async def _pump(self, choice: int, request: EngineRequest) -> None:
        """Move one request's outputs into the queue; None is the end."""

        def on_start(queue_s: float) -> None:
            self.record.queue_s = max(self.record.queue_s or 0.0, queue_s)

        outputs = self._backend.engine.generate(request, on_start)
        try:
            async with aclosing(cast("AsyncGenerator[RequestOutput, None]", outputs)) as items:
                async for item in items:
                    if item.finish_reason in ("error", "abort"):
                        raise EngineError(item.error or "the engine ended the request early")
                    self._queue.put_nowait((choice, item))
        except Exception as error:
            self._queue.put_nowait((choice, error))
        else:
            self._queue.put_nowait((choice, None))

    def usage(self) -> CompletionUsage:
        """Tokens so far: each prompt once, the output of all choices.

        Of a prompt's n choices the one that found least in the cache tells what was cached before.
        """
        by_prompt: dict[int, list[RequestStats]] = {}
        for choice, stats in self.record.choices.items():
            by_prompt.setdefault(choice // self._n, []).append(stats)
        choices = self.record.choices.values()
        num_prompt = sum(group[0].num_prompt_tokens for group in by_prompt.values())
        num_cached = sum(min(s.num_cached_tokens for s in group) for group in by_prompt.values())
        num_output = sum(stats.num_output_tokens for stats in choices)
        drafts = _drafts(choices)
        num_accepted = sum(by_source(drafts.accepted).values())
        num_drafted = sum(by_source(drafts.drafted).values())
        return CompletionUsage(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=0,
                accepted_prediction_tokens=num_accepted,
                rejected_prediction_tokens=num_drafted - num_accepted,
            ),
        )

    def report(
        self, unenforced: Sequence[Unenforced] = (), violations: Sequence[ViolationEntry] = ()
    ) -> Report:
        """The specrt extension of the response."""
        choices = [self.record.choices[i] for i in sorted(self.record.choices)]
        num_passes = sum(stats.num_passes for stats in choices)
        num_output = sum(stats.num_output_tokens for stats in choices)
        drafts = _drafts(choices)
        return Report(
            acceptance_length=round(num_output / num_passes, 4) if num_passes else 0.0,
            passes=num_passes,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            invalid_drafts=drafts.num_invalid,
            tokens_of_passes={
                str(num_tokens): passes
                for num_tokens, passes in sorted(drafts.tokens_of_passes.items())
            },
            draft_ms=round(drafts.draft_s * 1e3, 1),
            verify_ms=round(drafts.verify_s * 1e3, 1),
            accept_ms=round(drafts.accept_s * 1e3, 1),
            cached_tokens=[stats.num_cached_tokens for stats in choices],
            unenforced=[
                UnenforcedEntry(tool=u.tool, pointer=u.pointer, keyword=u.keyword)
                for u in unenforced
            ],
            violations=list(violations),
        )


def _drafts(choices: Iterable[RequestStats]) -> DraftStats:
    total = DraftStats()
    for stats in choices:
        total.add(stats.drafts)
    return total
