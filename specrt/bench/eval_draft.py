"""`specrt eval-draft`: how many tokens a pass a draft head brings, row by row of the ladder.

Real decoding through the engine, one request at a time, default flags. Every request runs with all
rows in turn, so they meet the same machine; what a row has learned stays with it. Nothing is known
across requests but that: no history, and no outputs in the cache that another row did not find.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specrt.bench.draft_ladder import LADDER
from specrt.bench.draft_passes import Drafted, VerifyPass, figures, read_pass
from specrt.bench.environment import describe, environment
from specrt.bench.eval_page import eval_page
from specrt.bench.eval_report import render
from specrt.bench.generator import Case, EngineGenerator, Generation, engine_config
from specrt.bench.html_page import write_page
from specrt.bench.options import EvalDraftOptions
from specrt.bench.recorded import recorded_text, tokens_under
from specrt.bench.report import write_json
from specrt.bench.token_kinds import token_kinds
from specrt.bench.traces import Trace, load_traces
from specrt.config import DRAFT_SOURCES
from specrt.draft_tree import DraftTree
from specrt.errors import ConfigError, EngineError
from specrt.progress import Progress
from specrt.request import EngineRequest, SamplingParams

_MAX_TOTAL_TOKENS = 16_384


@dataclass(slots=True)
class HeadReport:
    """What was measured of one head.

    Attributes:
        head: its folder's name.
        rows: row of the ladder -> its figures.
        num_requests: calls measured.
        num_left_out: calls that the grammar or the context has no room for.
        num_differing: outputs that differ between rows (rounding may do that, drafts never).
    """

    head: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_requests: int = 0
    num_left_out: int = 0
    num_differing: int = 0


def run(options: EvalDraftOptions) -> int:
    """Measure, print, write the JSON and the page.

    Returns:
        0.

    Raises:
        ConfigError: no traces, no model, no head, or --json or --html cannot be written.
    """
    traces = load_traces(options.traces)
    env = environment()
    print(describe(env))
    reports = [measure(head, traces, options) for head in options.heads]
    for report in reports:
        print(render(report.head, report.rows))
        if report.num_left_out:
            print(f"{report.num_left_out} calls left out: not in the grammar, or too long")
        if report.num_differing:
            print(f"{report.num_differing} outputs differ between rows")
    document: dict[str, Any] = {"environment": env, "options": asdict(options)}
    document["heads"] = [asdict(report) for report in reports]
    if options.json is not None:
        write_json(options.json, document)
    if options.html is not None:
        write_page(Path(options.html), eval_page(json.loads(json.dumps(document))), "--html")
    return 0


def measure(head: str | None, traces: Sequence[Trace], options: EvalDraftOptions) -> HeadReport:
    """Run one head through the ladder.

    Raises:
        ConfigError: the model or the head cannot be used, or no call is left to measure.
        EngineError: a request failed.
    """
    generator = EngineGenerator(
        engine_config(
            options.model_path,
            ",".join((*DRAFT_SOURCES, "eagle")),
            num_threads=options.num_threads,
            max_total_tokens=_MAX_TOTAL_TOKENS,
            draft_model_path=head,
        )
    )
    report = HeadReport(Path(head).name if head is not None else "shipped head")
    requests = _Requests(generator, traces, options)
    chosen = list(itertools.islice(requests, options.requests))
    report.num_requests, report.num_left_out = len(chosen), requests.num_left_out
    if not chosen:
        raise ConfigError("--traces: no recorded call is left to measure; see --max-prompt-tokens")
    bench = _Bench(generator, head)
    outputs: dict[str, list[Drafted]] = {name: [] for name in options.row_names}
    progress = Progress("calls", len(chosen))
    for index, (case, request) in enumerate(chosen):
        found = {name: bench.run(name, case, request) for name in options.row_names}
        for name, (drafted, _) in found.items():
            outputs[name].append(drafted)
        report.num_differing += len({tuple(g.token_ids) for _, g in found.values()}) > 1
        progress.update(index + 1)
    progress.close()
    report.rows = {name: figures(some) for name, some in outputs.items()}
    return report


class _Requests:
    """The calls to measure, data sets in turn."""

    def __init__(
        self, generator: EngineGenerator, traces: Sequence[Trace], options: EvalDraftOptions
    ) -> None:
        self._generator = generator
        self._traces = traces
        self._options = options
        limit = min(generator.engine.context_length, _MAX_TOTAL_TOKENS // 2) - options.max_tokens
        self._max_prompt_tokens = min(limit, options.max_prompt_tokens or limit)
        self.num_left_out = 0

    def __iter__(self) -> Iterator[tuple[Case, EngineRequest]]:
        count = itertools.count()
        for trace, position in _turns(self._traces):
            case = self._generator.case(trace, position, must_call=True)
            if case is None or len(case.request.prompt_token_ids) > self._max_prompt_tokens:
                self.num_left_out += 1
                continue
            sampling = SamplingParams(
                max_tokens=self._options.max_tokens,
                temperature=self._options.temperature,
                seed=self._options.seed + next(count),
            )
            if self._options.calls == "recorded":
                continuation = self._continuation(trace, position, case)
                if continuation is None:
                    self.num_left_out += 1
                    continue
                sampling = replace(sampling, continuation=continuation)
            yield case, case.sampled(sampling)

    def _continuation(self, trace: Trace, position: int, case: Case) -> tuple[int, ...] | None:
        engine = self._generator.engine
        text = recorded_text(trace.messages[position], trace.tools, self._generator.tool_format)
        if text is None or case.request.grammar is None:
            return None
        grammar = engine.worker.compiler.compile(case.request.grammar).open()
        end = engine.tokenizer.eos_token_ids[0]
        tokens = tokens_under(grammar, text, engine.tokenizer, end)
        return None if tokens is None else tuple(tokens)


def _turns(traces: Sequence[Trace]) -> Iterator[tuple[Trace, int]]:
    """The turns that called: one of each data set at a time, first turns of all traces first."""
    by_data_set: dict[str, list[tuple[int, Trace, int]]] = defaultdict(list)
    for trace in traces:
        called = [i for i, message in enumerate(trace.messages) if message.get("tool_calls")]
        for depth, position in enumerate(called):
            by_data_set[trace.source.split("/")[0]].append((depth, trace, position))
    ordered = [sorted(turns, key=lambda turn: turn[0]) for turns in by_data_set.values()]
    for group in itertools.zip_longest(*ordered):
        for turn in group:
            if turn is not None:
                yield turn[1], turn[2]


class _Bench:
    """One engine whose drafters are exchanged between requests."""

    def __init__(self, generator: EngineGenerator, head: str | None) -> None:
        self._generator = generator
        engine = generator.engine
        self._builders = {
            name: engine.make_builder(rung.config(head), is_masked=rung.is_masked)
            for name, rung in LADDER.items()
        }
        self._passes: list[VerifyPass] = []
        engine.worker.on_verified = self._keep

    def _keep(
        self, request_id: str, tree: DraftTree, accepted: list[int], token_ids: list[int]
    ) -> None:
        self._passes.append(read_pass(tree, accepted, token_ids))

    def run(self, name: str, case: Case, request: EngineRequest) -> tuple[Drafted, Generation]:
        """One request with the drafters of a row."""
        engine = self._generator.engine
        engine.worker.builder = self._builders[name]
        self._passes = []
        (output,) = self._generator.generate([request], 1)
        if output.error is not None:
            raise EngineError(f"{case.name}: {output.error}")
        compiler = engine.worker.compiler
        grammar = request.grammar
        kinds = token_kinds(
            None if grammar is None else compiler.compile(grammar).open(),
            output.token_ids,
            engine.worker.eos_token_ids,
            engine.tokenizer.token_bytes,
            self._generator.tool_format.json_trigger,
        )
        return Drafted(case.source, kinds, self._passes), output
